// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of decoding shuffled content compressed with LZ4 or zstd, compared with gzip of the same content
//! (decision 0531). Prints thread CPU time (Linux) in ms per object, the minimum of several rounds. Truncates each
//! object to whole MiB.
//!
//! Usage: `cargo run --release -p penstock-codec --example planes_rate FILE.gz ...`

use std::io::Write as _;

use penstock_codec::{Codec, GzipCheck, decompress_into_checked};
use penstock_types::{Error, Result};

const TURNS: usize = 4;
const WHOLE: usize = 1 << 20;
const MAX_BYTES: u64 = 1 << 32;

/// Returns this thread's CPU time in seconds.
fn cpu_s() -> Result<f64> {
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path).map_err(|error| Error::from_io(path, &error))?;
    let on_cpu = text.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    on_cpu.map(|nanoseconds| nanoseconds / 1e9).ok_or_else(|| Error::corrupt(path, "holds no time"))
}

/// Returns the CPU time of the fastest round, in milliseconds per object.
fn min_ms(objects: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut least = f64::MAX;
    for _ in 0..TURNS {
        let before = cpu_s()?;
        work()?;
        least = least.min(cpu_s()? - before);
    }
    Ok(1e3 * least / objects as f64)
}

fn shuffled<const N: usize>(block: &[u8]) -> Vec<u8> {
    (0..N).flat_map(|byte| block.as_chunks::<N>().0.iter().map(move |element| element[byte])).collect()
}

#[inline(always)]
fn unshuffle<const N: usize>(input: &[u8], out: &mut [u8]) {
    let count = input.len() / N;
    let planes: [&[u8]; N] = std::array::from_fn(|byte| &input[byte * count..][..count]);
    for (at, element) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        *element = std::array::from_fn(|byte| planes[byte][at]);
    }
}

/// Transposes an 8 x 8 bit matrix whose rows are the bytes of `x` (Hacker's Delight, 7-3).
#[inline(always)]
fn transposed(mut x: u64) -> u64 {
    for (mask, shift) in [(0x00aa_00aa_00aa_00aa, 7), (0x0000_cccc_0000_cccc, 14), (0x0000_0000_f0f0_f0f0, 28)] {
        let swapped = (x ^ (x >> shift)) & mask;
        x ^= swapped ^ (swapped << shift);
    }
    x
}

fn in_bits(plane: &[u8]) -> Vec<u8> {
    let rows: Vec<u8> = plane
        .as_chunks::<8>()
        .0
        .iter()
        .flat_map(|eight| transposed(u64::from_le_bytes(*eight)).to_le_bytes())
        .collect();
    shuffled::<8>(&rows)
}

#[inline(always)]
fn from_bits(bits: &[u8], out: &mut [u8]) {
    unshuffle::<8>(bits, out);
    for eight in out.as_chunks_mut::<8>().0 {
        *eight = transposed(u64::from_le_bytes(*eight)).to_le_bytes();
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn from_bits_avx2(bits: &[u8], out: &mut [u8]) {
    from_bits(bits, out);
}

fn print(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}").map_err(|error| Error::from_io("stdout", &error))
}

fn zstd_failed(error: &std::io::Error) -> Error {
    Error::bug(format!("zstd: {error}"))
}

fn main() -> Result<()> {
    let mut stored = Vec::new();
    for path in std::env::args().skip(1) {
        stored.push(std::fs::read(&path).map_err(|error| Error::from_io(&path, &error))?);
    }
    let (objects, bytes) = (stored.len(), stored.iter().map(Vec::len).sum::<usize>());
    let mut out = Vec::new();
    let mut inflate = |one: &Vec<u8>| {
        decompress_into_checked(Codec::Gzip, one, &mut out, MAX_BYTES, GzipCheck::SizeOnly, "an object")?;
        Ok::<_, Error>(out[..out.len() / WHOLE * WHOLE].to_vec())
    };
    let content = stored.iter().map(&mut inflate).collect::<Result<Vec<_>>>()?;
    let ms = min_ms(objects, || {
        stored.iter().try_for_each(|one| {
            decompress_into_checked(Codec::Gzip, one, &mut out, MAX_BYTES, GzipCheck::SizeOnly, "an object")
        })
    })?;
    print(&format!("gzip by libdeflate: {ms:.2}"))?;
    let mut room = vec![0; WHOLE];
    for block in [64 << 10, 512 << 10, WHOLE] {
        print(&format!("blocks of {} KiB", block >> 10))?;
        let plain = || content.iter().flat_map(|one| one.chunks(block));
        let two: Vec<Vec<u8>> = plain().map(shuffled::<2>).collect();
        let low: Vec<Vec<u8>> =
            two.iter().map(|one| [&in_bits(&one[..block / 2])[..], &one[block / 2..]].concat()).collect();
        let both: Vec<Vec<u8>> =
            two.iter().map(|one| one.chunks(block / 2).flat_map(in_bits).collect::<Vec<u8>>()).collect();
        let eight: Vec<Vec<u8>> = plain().map(shuffled::<8>).collect();
        let ms = min_ms(objects, || {
            two.iter().for_each(|one| unshuffle::<2>(one, &mut room[..block]));
            Ok(())
        })?;
        print(&format!("  undoing a byte shuffle of 2: {ms:.2}"))?;
        let ms = min_ms(objects, || {
            both.iter().for_each(|one| from_bits(one, &mut room[..block]));
            Ok(())
        })?;
        print(&format!("  undoing a bit shuffle: {ms:.2}"))?;
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            let ms = min_ms(objects, || {
                // SAFETY: the processor supports AVX2, as checked above.
                both.iter().for_each(|one| unsafe { from_bits_avx2(one, &mut room[..block]) });
                Ok(())
            })?;
            print(&format!("  the same by AVX2: {ms:.2}"))?;
        }
        let plain: Vec<Vec<u8>> = plain().map(<[u8]>::to_vec).collect();
        let forms = [
            ("as it is", &plain),
            ("bytes of 2", &two),
            ("low in bits", &low),
            ("bits", &both),
            ("bytes of 8", &eight),
        ];
        for (name, blocks) in forms {
            let before = cpu_s()?;
            let packed: Vec<Vec<u8>> = blocks.iter().map(|one| lz4_flex::block::compress(one)).collect();
            let making = 1e3 * (cpu_s()? - before) / objects as f64;
            let size = packed.iter().map(Vec::len).sum::<usize>() as f64 / bytes as f64;
            let ms = min_ms(objects, || {
                packed.iter().try_for_each(|one| match lz4_flex::block::decompress_into(one, &mut room) {
                    Ok(_) => Ok(()),
                    Err(error) => Err(Error::bug(format!("lz4: {error}"))),
                })
            })?;
            print(&format!("  {name}, LZ4: {size:.2} of the gzip, read {ms:.2}, made {making:.2}"))?;
            for level in [1, 3] {
                let before = cpu_s()?;
                let packed = blocks.iter().map(|one| zstd::bulk::compress(one, level));
                let packed = packed.collect::<std::io::Result<Vec<_>>>().map_err(|error| zstd_failed(&error))?;
                let making = 1e3 * (cpu_s()? - before) / objects as f64;
                let size = packed.iter().map(Vec::len).sum::<usize>() as f64 / bytes as f64;
                let mut reader = zstd::bulk::Decompressor::new().map_err(|error| zstd_failed(&error))?;
                let ms = min_ms(objects, || {
                    packed.iter().try_for_each(|one| match reader.decompress_to_buffer(one, &mut room[..]) {
                        Ok(_) => Ok(()),
                        Err(error) => Err(zstd_failed(&error)),
                    })
                })?;
                print(&format!("  {name}, zstd {level}: {size:.2} of the gzip, read {ms:.2}, made {making:.2}"))?;
            }
        }
    }
    Ok(())
}
