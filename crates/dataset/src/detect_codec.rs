// SPDX-License-Identifier: Apache-2.0
//! Detects the codec of an object whose name does not show the codec, from Content-Encoding and the first bytes.
//!
//! A codec is detected in two cases: Content-Encoding names it and the first bytes confirm it, or the first bytes
//! contradict the format that the name claims. In both cases, decompression leaves the object's name unchanged.

use penstock_codec::{Codec, checksum};

use crate::manifest::{CodecSource, RecordFormat};

/// Number of bytes at the start of an object that suffice to identify its codec.
pub const HEAD_BYTES: usize = 12;

/// Returns the codec that a Content-Encoding names. Returns `Codec::None` for a list of several codecs, which does not
/// occur in practice.
fn of_header(encoding: &str) -> Codec {
    match encoding.trim().to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" => Codec::Gzip,
        "zstd" => Codec::Zstd,
        _ => Codec::None,
    }
}

/// Returns the codec to decompress, and where the codec was found. Call this function only for an object whose name
/// does not show a codec.
pub fn detect(name: &[u8], encoding: Option<&str>, head: &[u8]) -> Option<(Codec, CodecSource)> {
    let seen = Codec::sniff(head);
    if seen == Codec::None {
        return None; // the bytes are not compressed, so a wrong Content-Encoding is ignored
    }
    match encoding.map(of_header) {
        Some(said) if said == seen => Some((seen, CodecSource::Header)),
        _ if claims_otherwise(name, head) => Some((seen, CodecSource::Content)),
        _ => None,
    }
}

/// True if the name claims a format whose files never start with a codec's magic bytes. Other names return false,
/// because a `.tgz` or a model's `.bin` may be compressed on purpose.
fn claims_otherwise(name: &[u8], head: &[u8]) -> bool {
    match RecordFormat::of_name(name) {
        RecordFormat::Npy | RecordFormat::Tar | RecordFormat::Jpeg => true,
        // The length field of a TFRecord of about 560 kB equals gzip's magic bytes. A matching checksum after this
        // field shows that the object is a TFRecord.
        RecordFormat::TfRecord => match (head.first_chunk::<8>(), head.get(8..HEAD_BYTES)) {
            (Some(length), Some(crc)) => checksum::crc32c_masked(length).to_le_bytes() != *crc,
            _ => true,
        },
        RecordFormat::Raw => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsaid_codec_needs_a_header_or_a_name_that_claims_otherwise() {
        let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 2];
        for (name, encoding, head, want) in [
            (&b"a.bin"[..], Some("gzip"), &gzip[..], Some((Codec::Gzip, CodecSource::Header))),
            (b"a.bin", Some(" X-GZIP "), &gzip, Some((Codec::Gzip, CodecSource::Header))),
            (b"a.bin", Some("gzip"), b"plain bytes!", None), // a proxy decompressed the object, or the header is wrong
            (b"a.bin", Some("zstd"), &gzip, None),
            (b"a.bin", Some("gzip, gzip"), &gzip, None),
            (b"a.tgz", None, &gzip, None),
            (b"a.tfrecord", None, &gzip, Some((Codec::Gzip, CodecSource::Content))),
            (b"a.npy", None, &gzip, Some((Codec::Gzip, CodecSource::Content))),
            (b"a.npy", None, b"", None),
        ] {
            assert_eq!(detect(name, encoding, head), want, "{name:?} {encoding:?}");
        }
    }

    #[test]
    fn unsaid_codec_of_a_record_that_begins_like_gzip_is_none() {
        let length = u64::from_le_bytes([0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
        let mut head = length.to_le_bytes().to_vec();
        head.extend(checksum::crc32c_masked(&length.to_le_bytes()).to_le_bytes());
        assert_eq!(detect(b"a.tfrecord", None, &head), None);
        head[9] ^= 1;
        assert!(detect(b"a.tfrecord", None, &head).is_some());
    }
}
