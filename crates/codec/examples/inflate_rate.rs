// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of `decompress_into` relative to bare libdeflate. The content imitates the counts of a CosmoFlow
//! volume. The unit is thread CPU time (Linux), which a busy machine distorts less than wall time. The result is the
//! ratio of two medians from one run.
//!
//! Usage: `cargo run --release -p penstock-codec --example inflate_rate`

use std::fmt::Write as _;
use std::io::Write as _;

use penstock_codec::{Codec, GzipCheck, StreamDecoder, compress, decompress_into, decompress_into_checked};
use penstock_types::{Error, Result};

const VALUES: usize = 128 * 128 * 128 * 4;
const REPEATS: usize = 5;
/// Decompressions per measurement. One is too short to measure, because the CPU clock has a resolution of 4 ms.
const AT_ONCE: usize = 10;

/// Generates int16 counts from a Poisson distribution whose log-normal mean varies along the volume, like galaxy counts
/// in cells.
fn counts() -> Vec<u8> {
    let mut state = 17u64;
    let mut uniform = move || {
        // SplitMix64 random number generator.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut field = 0.0f64;
    let mut bytes = Vec::with_capacity(2 * VALUES);
    for _ in 0..VALUES {
        // The sum of four uniform draws is close enough to a normal distribution; the correlation length is about 30
        // cells.
        field = 0.97 * field + 0.42 * ((0..4).map(|_| uniform()).sum::<f64>() - 2.0);
        let floor = (-(1.2 * field - 1.6).exp()).exp();
        let (mut count, mut product) = (0i16, uniform());
        while product > floor && count < 2000 {
            count += 1;
            product *= uniform();
        }
        bytes.extend(count.to_le_bytes());
    }
    bytes
}

type Work<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// Returns this thread's CPU time in seconds. The first number of its schedstat file is the time in nanoseconds.
fn cpu_s() -> Result<f64> {
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path).map_err(|error| Error::from_io(path, &error))?;
    let on_cpu = text.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    on_cpu.map(|nanoseconds| nanoseconds / 1e9).ok_or_else(|| Error::corrupt(path, "does not start with a CPU time"))
}

/// Returns the median time of each of `works`. Runs all works in turn, `REPEATS` times after a warm-up, so that changes
/// in machine load affect all of them equally.
fn medians_s(works: &mut [(&str, Work<'_>)]) -> Result<Vec<f64>> {
    let mut times = vec![Vec::new(); works.len()];
    for repeat in 0..=REPEATS {
        for ((_, work), times) in works.iter_mut().zip(&mut times) {
            let before = cpu_s()?;
            for _ in 0..AT_ONCE {
                work()?;
            }
            if repeat > 0 {
                times.push((cpu_s()? - before) / AT_ONCE as f64);
            }
        }
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    Ok(times.iter().map(|times| times[REPEATS / 2]).collect())
}

fn main() -> Result<()> {
    let plain = counts();
    let limit = plain.len() as u64;
    let stored = |codec: Codec| compress(codec, &plain, codec.default_level());
    let (gz, zst, lz4) = (stored(Codec::Gzip)?, stored(Codec::Zstd)?, stored(Codec::Lz4)?);
    let streamed = |codec: Codec, stored: &[u8]| {
        let mut inflater = StreamDecoder::new(codec, limit, "p");
        stored.chunks(1 << 20).try_for_each(|piece| inflater.push(piece, &mut |_| Ok(())))?;
        inflater.finish().map(drop)
    };
    let mut slot = vec![0; plain.len()];
    let mut bare = libdeflater::Decompressor::new();
    let (mut a, mut b, mut c, mut d) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut works: Vec<(&str, Work<'_>)> = vec![
        (
            "bare libdeflate (gzip)",
            Box::new(|| bare.gzip_decompress(&gz, &mut slot).map(drop).map_err(|error| Error::bug(error.to_string()))),
        ),
        ("decompress_into gzip", Box::new(|| decompress_into(Codec::Gzip, &gz, &mut a, limit, "p"))),
        (
            "decompress_into gzip, size check only",
            Box::new(|| decompress_into_checked(Codec::Gzip, &gz, &mut b, limit, GzipCheck::SizeOnly, "p")),
        ),
        (
            "decompress_into gzip, new buffer",
            Box::new(|| decompress_into(Codec::Gzip, &gz, &mut Vec::new(), limit, "p")),
        ),
        ("decompress_into zstd", Box::new(|| decompress_into(Codec::Zstd, &zst, &mut c, limit, "p"))),
        ("decompress_into lz4", Box::new(|| decompress_into(Codec::Lz4, &lz4, &mut d, limit, "p"))),
        ("StreamDecoder gzip, 1 MiB pieces", Box::new(|| streamed(Codec::Gzip, &gz))),
        ("StreamDecoder zstd, 1 MiB pieces", Box::new(|| streamed(Codec::Zstd, &zst))),
        ("StreamDecoder lz4, 1 MiB pieces", Box::new(|| streamed(Codec::Lz4, &lz4))),
    ];
    let medians = medians_s(&mut works)?;
    let mut text = String::new();
    for ((name, _), seconds) in works.iter().zip(&medians) {
        let (rate, ratio) = (plain.len() as f64 / seconds / 1e6, medians[0] / seconds);
        let _ = writeln!(text, "{name:<36}{rate:>7.0} MB/cpu-s inflated{ratio:>7.2} x bare");
    }
    let ratios = [&gz, &zst, &lz4].map(|stored| format!("{:.2}", plain.len() as f64 / stored.len() as f64));
    let _ = writeln!(
        text,
        "{:.1} MB of int16 counts; gzip-6, zstd-3, lz4 ratios {}; median of {REPEATS}, in turn",
        plain.len() as f64 / 1e6,
        ratios.join(", ")
    );
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| Error::from_io("stdout", &error))
}
