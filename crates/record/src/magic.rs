// SPDX-License-Identifier: Apache-2.0
//! Content sniffing: detects an object's format by magic numbers in its first bytes.
//!
//! The result is a guess. The guess is used in messages, and to choose the format of an object whose name does not show
//! one. No decoder relies on the guess.

use crate::{tar_header, tfrecord_header};

/// Number of first bytes that suffice to detect every format in this module.
pub const HEAD_LEN: usize = 512;

/// Name of the TFRecord format, as returned by [`describe`].
pub const TFRECORD: &str = "TFRecords";
/// Name of the tar format, as returned by [`describe`].
pub const TAR: &str = "a tar archive";
/// Name of NumPy's `.npy` format, as returned by [`describe`].
pub const NPY: &str = "a NumPy array";
/// Name of NumPy's `.npz` format, as returned by [`describe`].
pub const NPZ: &str = "a NumPy archive";
/// Name of the Parquet format, as returned by [`describe`].
pub const PARQUET: &str = "a Parquet file";
/// Name of Arrow's file format, as returned by [`describe`].
pub const ARROW_FILE: &str = "an Arrow IPC file";
/// Name of Arrow's stream format, as returned by [`describe`].
pub const ARROW_STREAM: &str = "an Arrow IPC stream";
/// Name of text that begins like JSON, as returned by [`describe`].
pub const JSON: &str = "JSON text";
/// Name of the HDF5 format, as returned by [`describe`].
pub const HDF5: &str = "an HDF5 file";
/// Name of the JPEG format, as returned by [`describe`].
pub const JPEG: &str = "a JPEG image";
/// Name of the PNG format, as returned by [`describe`].
pub const PNG: &str = "a PNG image";
/// Name of the TIFF format, as returned by [`describe`].
pub const TIFF: &str = "a TIFF image";
/// Name of the WebP format, as returned by [`describe`].
pub const WEBP: &str = "a WebP image";
/// Name of the WAV format, as returned by [`describe`].
pub const WAV: &str = "a WAV file";
/// Name of the FLAC format, as returned by [`describe`].
pub const FLAC: &str = "a FLAC file";
/// Name of the Ogg format, as returned by [`describe`].
pub const OGG: &str = "an Ogg file";
/// Name of the MP3 format, as returned by [`describe`].
pub const MP3: &str = "an MP3 file";
/// Name of the MP4 format, as returned by [`describe`].
pub const MP4: &str = "an MP4 video";
/// Name of the Matroska format, as returned by [`describe`].
pub const MATROSKA: &str = "a Matroska or WebM video";
/// Name of the AVI format, as returned by [`describe`].
pub const AVI: &str = "an AVI video";
/// Name of the zlib format, as returned by [`describe`].
pub const ZLIB: &str = "zlib-compressed data";

/// Magic numbers: offset, bytes and format name.
const MAGIC: &[(usize, &[u8], &str)] = &[
    (0, b"\x93NUMPY", NPY),
    (0, b"PAR1", PARQUET),
    (0, b"\x89HDF\r\n\x1a\n", HDF5),
    (0, b"\xff\xd8\xff", JPEG),
    (0, b"\x89PNG\r\n\x1a\n", PNG),
    (0, b"\x1f\x8b\x08", "gzip-compressed data"),
    (0, b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (0, b"\x04\x22\x4d\x18", "LZ4-compressed data"),
    (0, b"BZh", "bzip2-compressed data"),
    (0, b"\xfd7zXZ\0", "xz-compressed data"),
    (0, b"\xff\x06\0\0sNaPpY", "Snappy-compressed data"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!\x1a\x07", "a RAR archive"),
    (0, b"ARROW1", ARROW_FILE),
    (0, b"Obj\x01", "an Avro file"),
    (0, b"ORC", "an ORC file"),
    (0, b"CDF\x01", "a NetCDF file"),
    (0, b"CDF\x02", "a NetCDF file"),
    (0, b"CDF\x05", "a NetCDF file"),
    (0, b"MATLAB", "a MATLAB file"),
    (0, b"GIF8", "a GIF image"),
    (0, b"II*\0", TIFF),
    (0, b"MM\0*", TIFF),
    (8, b"WEBP", WEBP),
    (8, b"WAVE", WAV),
    (8, b"AVI ", AVI),
    (4, b"ftyp", MP4),
    (0, b"\x1a\x45\xdf\xa3", MATROSKA),
    (0, b"OggS", OGG),
    (0, b"fLaC", FLAC),
    (0, b"ID3", MP3),
    (0, b"SQLite format 3\0", "an SQLite database"),
];

/// Names the format of an object from its first [`HEAD_LEN`] (decompressed) bytes; `None` if the format is unknown.
pub fn describe(head: &[u8]) -> Option<&'static str> {
    let head = &head[..head.len().min(HEAD_LEN)];
    if head.first_chunk().is_some_and(tfrecord_header::header_is_sound) {
        return Some(TFRECORD);
    }
    if tar_header::sniff(head) {
        return Some(TAR);
    }
    let begins = |(at, magic, _): &&(usize, &[u8], &str)| head.get(*at..).is_some_and(|rest| rest.starts_with(magic));
    if let Some((_, _, name)) = MAGIC.iter().find(begins) {
        return Some(name);
    }
    if head.starts_with(b"PK\x03\x04") {
        return Some(zip(head));
    }
    let number = head.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    match head {
        // safetensors: the length of the header, then the header as JSON.
        [_, _, _, _, _, _, _, _, b'{', ..] if number.is_some_and(|len| len < 100 << 20) => Some("a safetensors file"),
        // Arrow IPC: a continuation marker, then the length of a schema message.
        [0xff, 0xff, 0xff, 0xff, _, _, _, 0, ..] => Some(ARROW_STREAM),
        [0x78, flags, ..] if (0x7800 + u16::from(*flags)).is_multiple_of(31) => Some(ZLIB),
        [0x80, 2..=5, ..] => Some("a pickle"),
        // In the header of a BMP file, the reserved fields are zero.
        [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => Some("a BMP image"),
        _ => text(head),
    }
}

/// Names the kind of a zip archive from the name of its first member.
fn zip(head: &[u8]) -> &'static str {
    let len = head.get(26..).and_then(|rest| rest.first_chunk()).map_or(0, |len| usize::from(u16::from_le_bytes(*len)));
    match head.get(30..30 + len) {
        Some(name) if name.ends_with(b".npy") => NPZ,
        Some(name) if name.ends_with(b"/data.pkl") => "a PyTorch file",
        _ => "a zip archive",
    }
}

/// Detects UTF-8 text without control characters; `head` may end in the middle of a character.
fn text(head: &[u8]) -> Option<&'static str> {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&head[..error.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    let printed = |c: char| !c.is_control() || matches!(c, '\t' | '\n' | '\r' | '\x0c');
    if text.is_empty() || !text.chars().all(printed) {
        return None;
    }
    Some(if text.trim_start().starts_with(['{', '[']) { JSON } else { "text" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describe_names_formats_by_their_first_bytes() {
        let mut record = Vec::new();
        crate::tfrecord::write_frame(b"payload", &mut record);
        let zip = |name: &str| [b"PK\x03\x04", &[0; 22][..], &[name.len() as u8, 0, 0, 0], name.as_bytes()].concat();
        let text = "é".repeat(HEAD_LEN);
        for (head, want) in [
            (record.as_slice(), Some(TFRECORD)),
            (&record[..12], Some(TFRECORD)),
            (&record[..11], None),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Some("a WebP image")),
            (&zip("x.npy"), Some(NPZ)),
            (&zip("archive/data.pkl"), Some("a PyTorch file")),
            (&zip("a.txt"), Some("a zip archive")),
            (b"\x78\x9c\x63\0", Some(ZLIB)),
            (b"x\0", None),
            (b"\x40\0\0\0\0\0\0\0{\"a\":", Some("a safetensors file")),
            (b" \n[1, 2]", Some("JSON text")),
            (b"a,b\r\n1,2\r\n", Some("text")),
            // Text that is cut in the middle of a character.
            (&text.as_bytes()[..HEAD_LEN - 1], Some("text")),
            (b"\x01\x02\x03", None),
            (&[0; HEAD_LEN], None),
            (b"", None),
        ] {
            assert_eq!(describe(head), want, "{head:?}");
        }
    }
}
