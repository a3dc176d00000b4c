// SPDX-License-Identifier: Apache-2.0
//! Writes a manifest of N synthetic objects for `benches/scale.py`, with the metadata that an S3 listing would return.
//!
//! Usage: `synthetic_manifest FILE N`.

use std::path::Path;

use penstock_dataset::{Entry, Manifest};
use penstock_store::Version;
use penstock_types::{Algorithm, Digest, Error, Key, Result};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (file, count) = match &arguments[..] {
        [file, count] => (Path::new(file), count.parse::<u64>().ok()),
        _ => return Err(Error::config("arguments", "are FILE and N")),
    };
    let count = count.ok_or_else(|| Error::config("N", "is not a number"))?;
    let mut state = 7u64;
    let objects = (0..count).map(|at| {
        // splitmix64: random sizes from 64 kB to 16 MB, and ETags that do not compress.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 27;
        let key = format!("part-{:05}/univ_ics_2019-03_a{at:08}_{:03}.tfrecord.gz", at / 1000, at % 64);
        let mut entry = Entry::new(Key::from(key.as_str()), (64 << 10) + mixed % (16 << 20));
        entry.version = Some(Version(format!("\"{mixed:016x}{state:016x}\"")));
        entry.modified_s = Some(1.76e9 + at as f64);
        entry.digests = vec![Digest::of_u32(Algorithm::Crc32c, mixed as u32)];
        entry
    });
    Manifest::new("s3://synthetic/train/".to_owned(), objects.collect()).save(file)
}
