// SPDX-License-Identifier: Apache-2.0
//! TFRecord bindings, for the dataset generators and for inspecting files.

use penstock_codec::{Codec, checksum, compress, decompress_into};
use penstock_record::tf_example::{Example, Feature, FeatureValue, encode_example};
use penstock_record::tfrecord::{Frames, write_frame};
use penstock_types::Error;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyList, PyMapping};

use crate::array::Memory;
use crate::errors::raise;
use crate::runtime::enter;

/// Maximum decompressed size of a file in `decode_tfrecord` (1 GiB). The function is meant for inspecting files.
const DECODE_LIMIT: u64 = 1 << 30;

/// Value of a feature, readable while the GIL is released.
enum Held<'py> {
    Bytes(Vec<Bound<'py, PyBytes>>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
}

impl<'py> Held<'py> {
    fn of(name: &str, value: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = value.cast::<PyBytes>() {
            return Ok(Self::Bytes(vec![bytes.clone()]));
        }
        let py = value.py();
        if let Ok(floats) = PyBuffer::<f32>::get(value) {
            return Ok(Self::Floats(floats.to_vec(py)?));
        }
        let refused = |problem: &str| raise(py, Error::config(format!("feature `{name}`"), problem));
        let Ok(list) = value.cast::<PyList>() else {
            return Err(refused("must be bytes, a list or a buffer of float32"));
        };
        let mut items = list.iter().peekable();
        match items.peek() {
            None => Err(refused("the type of an empty list is unknown; use an empty buffer of float32")),
            Some(first) if first.is_instance_of::<PyBytes>() => {
                let bytes: Result<_, _> = items.map(|item| item.cast_into::<PyBytes>()).collect();
                bytes.map(Self::Bytes).map_err(|_| refused("mixes bytes with other values"))
            }
            Some(first) if first.is_instance_of::<PyFloat>() => {
                let floats: Option<_> = items.map(|item| as_f32(&item)).collect();
                floats
                    .map(Self::Floats)
                    .ok_or_else(|| refused("mixes floats with other values, or has floats beyond 32 bits"))
            }
            Some(first) if first.is_instance_of::<PyInt>() => {
                let ints: Result<_, _> = items
                    .map(
                        |item| {
                            if item.is_instance_of::<PyInt>() { item.extract::<i64>().map_err(drop) } else { Err(()) }
                        },
                    )
                    .collect();
                ints.map(Self::Ints)
                    .map_err(|()| refused("mixes integers with other values, or has integers beyond 64 bits"))
            }
            Some(_) => Err(refused("must be a list of bytes, floats or integers")),
        }
    }
}

/// Converts a Python float to float32. Returns `None` for a value of another type, or a value that is too large.
fn as_f32(item: &Bound<'_, PyAny>) -> Option<f32> {
    let wide = item.cast::<PyFloat>().ok()?.value();
    let float = wide as f32;
    (float.is_finite() || !wide.is_finite()).then_some(float)
}

/// Encodes one tf.Example as one TFRecord frame, optionally compressed.
#[pyfunction]
#[pyo3(signature = (features, *, codec = "none", level = None))]
pub fn encode_tfrecord<'py>(
    py: Python<'py>,
    features: &Bound<'py, PyMapping>,
    codec: &str,
    level: Option<i32>,
) -> PyResult<Bound<'py, PyBytes>> {
    let codec: Codec = codec.parse().map_err(|error| raise(py, error))?;
    let level = level.unwrap_or_else(|| codec.default_level());
    let mut held = Vec::new();
    for item in features.items()?.iter() {
        let (name, value): (String, Bound<'py, PyAny>) = item.extract()?;
        let value = Held::of(&name, &value)?;
        held.push((name, value));
    }
    let spans: Vec<Vec<&[u8]>> = held
        .iter()
        .map(|(_, value)| match value {
            Held::Bytes(values) => values.iter().map(|bytes| bytes.as_bytes()).collect(),
            Held::Floats(_) | Held::Ints(_) => Vec::new(),
        })
        .collect();
    let values: Vec<_> = held
        .iter()
        .zip(&spans)
        .map(|((name, value), spans)| {
            let value = match value {
                Held::Bytes(_) => FeatureValue::BytesList(spans),
                Held::Floats(floats) => FeatureValue::Floats(floats),
                Held::Ints(ints) => FeatureValue::Ints(ints),
            };
            (name.as_str(), value)
        })
        .collect();
    let stored = enter(py, || {
        let payload = encode_example(&values);
        let mut framed = Vec::new();
        write_frame(&payload, &mut framed);
        drop(payload);
        if codec == Codec::None { Ok(framed) } else { compress(codec, &framed, level) }
    })?;
    Ok(PyBytes::new(py, &stored))
}

/// Decodes all examples of a TFRecord object, and verifies every checksum.
#[pyfunction]
#[pyo3(signature = (data, *, codec = None))]
pub fn decode_tfrecord<'py>(py: Python<'py>, data: &[u8], codec: Option<&str>) -> PyResult<Bound<'py, PyList>> {
    const PLACE: &str = "the data";
    let codec = codec.map_or(Ok(Codec::sniff(data)), str::parse).map_err(|error| raise(py, error))?;
    let plain = enter(py, || {
        let mut plain = Vec::new();
        decompress_into(codec, data, &mut plain, DECODE_LIMIT, PLACE).map(|()| plain)
    })?;
    let records = PyList::empty(py);
    for (at, frame) in Frames::new(&plain, PLACE, true).enumerate() {
        let frame = frame.map_err(|error| raise(py, error))?;
        let example =
            Example::parse(frame.payload, &format!("record {at} of {PLACE}")).map_err(|error| raise(py, error))?;
        let record = PyDict::new(py);
        for (name, feature) in example.features() {
            match feature {
                Feature::Bytes(values) => match values.as_slice() {
                    [value] => record.set_item(name, PyBytes::new(py, value))?,
                    values => {
                        record.set_item(name, PyList::new(py, values.iter().map(|value| PyBytes::new(py, value)))?)?
                    }
                },
                Feature::Floats(values) => record.set_item(name, values.iter().collect::<Vec<_>>())?,
                Feature::Ints(values) => record.set_item(name, values.iter().collect::<Vec<_>>())?,
            }
        }
        records.append(record)?;
    }
    Ok(records)
}

/// Computes the CRC-32C of `data`.
#[pyfunction]
pub fn crc32c(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u32> {
    let data = Memory::of(data, false)?;
    Ok(py.detach(|| checksum::crc32c(data.slice())))
}
