// SPDX-License-Identifier: Apache-2.0
//! Types that every Penstock crate uses: errors, URLs, keys, ranges, shapes, digests, metrics, the clock and a timer.
//!
//! This crate does no I/O and depends on no other Penstock crate.

mod clock;
mod digest;
mod error;
mod metric;
mod number_format;
mod panic;
mod range;
mod settings;
mod shape;
mod sync;
mod timer;
mod url;

pub use clock::{Deadline, Stopwatch, now, unix_now};
pub use digest::{Algorithm, Digest, PartDigest};
pub use error::{Error, Result};
pub use metric::{Metric, Metrics, Unit};
pub use number_format::with_separators;
pub use panic::{Panicked, catch_panic};
pub use range::ByteRange;
pub use settings::{duration, parse_settings};
pub use shape::{DType, TensorSpec};
pub use sync::lock;
pub use timer::{Sleep, Timer};
pub use url::{Key, Scheme, Url};
