// SPDX-License-Identifier: Apache-2.0
//! Decompresses into a buffer of the exact size, for array chunks and zip members. The caller knows the decompressed
//! size, because it is stored elsewhere.

use std::mem::MaybeUninit;

use penstock_types::{Error, Result, with_separators};

use crate::libdeflate::{self, Outcome};
use crate::{Codec, GzipCheck, decompress_into_checked};

/// Compression format of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SizedCodec {
    /// A bare DEFLATE stream (RFC 1951), as in zip files.
    Deflate,
    /// A zlib stream (RFC 1950): a two-byte header, DEFLATE data and an Adler-32 checksum.
    Zlib,
    /// gzip (RFC 1952).
    Gzip,
    /// zstd (RFC 8878).
    Zstd,
    /// A single LZ4 block without a frame or a size.
    Lz4Block,
}

/// Decompresses `input` into `out`, and requires that the data fill `out` exactly. `place` names the input in errors.
///
/// # Errors
/// [`Error::Corrupt`] if `input` is damaged, decompresses to another size, or has trailing bytes.
pub fn decompress_exact(packing: SizedCodec, input: &[u8], out: &mut [u8], place: &str) -> Result<()> {
    match packing {
        SizedCodec::Deflate => compress(input, out, place).and_then(|used| all_of(used, input.len(), place)),
        SizedCodec::Zlib => zlib(input, out, place),
        SizedCodec::Gzip => gzip(input, out, place),
        SizedCodec::Zstd => zstd(input, out, place),
        SizedCodec::Lz4Block => match lz4_flex::block::decompress_into(input, out) {
            Ok(made) => whole(made, out.len(), place),
            Err(problem) => Err(Error::corrupt(place, format!("is a damaged LZ4 block: {problem}"))),
        },
    }
}

fn whole(made: usize, want: usize, place: &str) -> Result<()> {
    if made == want {
        return Ok(());
    }
    let (made, want) = (with_separators(made as u64), with_separators(want as u64));
    Err(Error::corrupt(place, format!("decompresses to {made} bytes, but {want} were expected")))
}

fn all_of(used: usize, have: usize, place: &str) -> Result<()> {
    if used == have {
        return Ok(());
    }
    Err(Error::corrupt(
        place,
        format!(
            "has compressed data that ends after {} of {} stored bytes",
            with_separators(used as u64),
            with_separators(have as u64)
        ),
    ))
}

/// Decompresses a DEFLATE stream that must fill `out`. Returns the number of stored bytes consumed.
fn compress(input: &[u8], out: &mut [u8], place: &str) -> Result<usize> {
    let want = out.len();
    // SAFETY: initialised bytes may be viewed as uninitialised memory, and only bytes are written to them.
    let slot = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<u8>]) };
    match libdeflate::inflate_raw(input, slot) {
        Outcome::Done { used, made } => whole(made, want, place).map(|()| used),
        Outcome::Bad => Err(Error::corrupt(place, "is a damaged or truncated DEFLATE stream")),
        Outcome::NoRoom => {
            Err(Error::corrupt(place, format!("decompresses to more than {} bytes", with_separators(want as u64))))
        }
    }
}

fn zlib(input: &[u8], out: &mut [u8], place: &str) -> Result<()> {
    let Some(([method, flags], rest)) = input.split_first_chunk::<2>() else {
        return Err(Error::corrupt(place, "is too short for a zlib stream"));
    };
    let sound = method & 15 == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0;
    if !sound || flags & 0x20 != 0 {
        return Err(Error::corrupt(place, format!("is not a zlib stream (it begins {method:#04x} {flags:#04x})")));
    }
    let used = compress(rest, out, place)?;
    let Some((sum, behind)) = rest[used..].split_first_chunk::<4>() else {
        return Err(Error::corrupt(place, "ends inside the checksum of its zlib stream"));
    };
    let (want, is) = (u32::from_be_bytes(*sum), libdeflater::adler32(out));
    if want != is {
        return Err(Error::corrupt(
            place,
            format!("has a damaged zlib stream: Adler-32 is {is:#010x}, want {want:#010x}"),
        ));
    }
    all_of(input.len() - behind.len(), input.len(), place)
}

fn gzip(input: &[u8], out: &mut [u8], place: &str) -> Result<()> {
    // Only the whole-object path supports several members, and members with a name or a comment. The extra copy costs a
    // tenth of the decompression time.
    let mut made = Vec::new();
    decompress_into_checked(Codec::Gzip, input, &mut made, out.len() as u64, GzipCheck::Full, place)?;
    whole(made.len(), out.len(), place)?;
    out.copy_from_slice(&made);
    Ok(())
}

fn zstd(input: &[u8], out: &mut [u8], place: &str) -> Result<()> {
    use std::cell::RefCell;
    use zstd::zstd_safe::{DCtx, get_error_name};
    thread_local! {
        static CONTEXT: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
    }
    let made = CONTEXT
        .with_borrow_mut(|context| context.decompress(out, input))
        .map_err(|code| Error::corrupt(place, format!("is damaged zstd: {}", get_error_name(code))))?;
    whole(made, out.len(), place)
}

/// CRC-32 as used in gzip, zip and PNG.
pub fn crc32(bytes: &[u8]) -> u32 {
    libdeflater::crc32(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn packed(packing: SizedCodec, bytes: &[u8]) -> Vec<u8> {
        match packing {
            SizedCodec::Deflate => {
                let mut writer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::new(6));
                writer.write_all(bytes).unwrap();
                writer.finish().unwrap()
            }
            SizedCodec::Zlib => {
                let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(6));
                writer.write_all(bytes).unwrap();
                writer.finish().unwrap()
            }
            SizedCodec::Gzip => crate::compress(Codec::Gzip, bytes, 6).unwrap(),
            SizedCodec::Zstd => crate::compress(Codec::Zstd, bytes, 3).unwrap(),
            SizedCodec::Lz4Block => lz4_flex::block::compress(bytes),
        }
    }

    const ALL: [SizedCodec; 5] =
        [SizedCodec::Deflate, SizedCodec::Zlib, SizedCodec::Gzip, SizedCodec::Zstd, SizedCodec::Lz4Block];

    proptest! {
        #[test]
        fn prop_exact_fills_the_slot_or_errs(bytes: Vec<u8>, more in 1..9usize, cut: prop::sample::Index) {
            for packing in ALL {
                let stored = packed(packing, &bytes);
                let mut out = vec![0; bytes.len()];
                decompress_exact(packing, &stored, &mut out, "p").unwrap();
                prop_assert_eq!(&out, &bytes);
                prop_assert!(decompress_exact(packing, &stored, &mut vec![0; bytes.len() + more], "p").is_err());
                if let Some(less) = bytes.len().checked_sub(more) {
                    prop_assert!(decompress_exact(packing, &stored, &mut vec![0; less], "p").is_err());
                }
                prop_assert!(decompress_exact(packing, &stored[..cut.index(stored.len())], &mut out, "p").is_err()
                    || bytes.is_empty());
                prop_assert!(decompress_exact(packing, &[&stored[..], b"\x01"].concat(), &mut out, "p").is_err()
                    || bytes.is_empty());
            }
        }
    }

    #[test]
    fn exact_zlib_checks_its_sum_and_head() {
        let mut stored = packed(SizedCodec::Zlib, b"some bytes");
        let last = stored.len() - 1;
        stored[last] ^= 1;
        let error = decompress_exact(SizedCodec::Zlib, &stored, &mut [0; 10], "p").unwrap_err().to_string();
        assert!(error.starts_with("p has a damaged zlib stream: Adler-32 is 0x"), "{error}");
        let error = decompress_exact(SizedCodec::Zlib, b"\x1f\x8b\x08", &mut [0; 10], "p").unwrap_err().to_string();
        assert_eq!(error, "p is not a zlib stream (it begins 0x1f 0x8b)");
    }
}
