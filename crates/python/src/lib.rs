// SPDX-License-Identifier: Apache-2.0
//! Python bindings. Only this crate uses PyO3. It converts values and errors, releases the GIL (`runtime`), and
//! contains no other logic.

#![allow(missing_docs, reason = "what Python sees is documented in _native.pyi")]

mod array;
mod batch_by;
mod bench;
mod byte_pairs;
mod diff;
mod dlpack;
mod emulator;
mod errors;
mod feed;
mod fsspec;
mod index;
mod process_local;
mod record;
mod run;
mod runtime;
mod sampler;
mod shard_buffer;
mod source;
mod stage;
mod tensor;
mod unindexed;

use pyo3::prelude::*;

/// `penstock._native`
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(record::encode_tfrecord, module)?)?;
    module.add_function(wrap_pyfunction!(record::decode_tfrecord, module)?)?;
    module.add_function(wrap_pyfunction!(record::crc32c, module)?)?;
    module.add_function(wrap_pyfunction!(shard_buffer::tar_member, module)?)?;
    module.add_function(wrap_pyfunction!(shard_buffer::record_offsets, module)?)?;
    module.add_class::<shard_buffer::PyShardBuffer>()?;
    module.add_class::<shard_buffer::PyShardBytes>()?;
    module.add_class::<shard_buffer::PyShardMemory>()?;
    module.add_function(wrap_pyfunction!(index::index, module)?)?;
    module.add_function(wrap_pyfunction!(diff::diff, module)?)?;
    module.add_function(wrap_pyfunction!(stage::verify, module)?)?;
    module.add_class::<stage::PyStageRequest>()?;
    module.add_class::<stage::PyStageJob>()?;
    // Benchmarks record the build profile, because rates of a debug build are not valid.
    module.add("__profile__", if cfg!(debug_assertions) { "debug" } else { "release" })?;
    module.add_class::<emulator::Emulator>()?;
    module.add_class::<fsspec::PyFiles>()?;
    module.add_class::<array::PySegyFile>()?;
    module.add_class::<array::PyChunkedArray>()?;
    module.add_class::<array::PyZarrWriter>()?;
    module.add_class::<array::PyObjectWriter>()?;
    module.add_function(wrap_pyfunction!(array::encode_traces, module)?)?;
    module.add_function(wrap_pyfunction!(array::write_traces, module)?)?;
    module.add_class::<bench::PyStoragePhase>()?;
    module.add_class::<bench::PyObjectPhase>()?;
    module.add_function(wrap_pyfunction!(bench::clear_objects, module)?)?;
    module.add_function(wrap_pyfunction!(bench::object_keys, module)?)?;
    module.add_function(wrap_pyfunction!(bench::merge_latencies, module)?)?;
    module.add("ORDER_VERSION", penstock_dataset::order::ORDER_VERSION)?;
    module.add_class::<tensor::PyTensor>()?;
    module.add_class::<tensor::PyRagged>()?;
    module.add_class::<tensor::PyCudaDevice>()?;
    module.add_class::<source::PySource>()?;
    module.add_class::<source::PyCounted>()?;
    module.add_class::<source::PyPartialCounts>()?;
    module.add_class::<sampler::PySampler>()?;
    module.add_class::<batch_by::PyBatchBy>()?;
    module.add_class::<byte_pairs::PyBytePairs>()?;
    module.add_class::<feed::PyFeed>()?;
    module.add_class::<unindexed::PyUnindexed>()?;
    module.add_class::<run::PyRun>()?;
    Ok(())
}
