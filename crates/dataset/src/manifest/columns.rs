// SPDX-License-Identifier: Apache-2.0
//! Columns of a Parquet manifest: the entry field of each column, and the conversion between entries and cells.

use bytes::Bytes;
use penstock_codec::Codec;
use penstock_store::Version;
use penstock_types::{Algorithm, Digest, Key};

use super::serde_with::normal_transform;
use crate::manifest::{CodecSource, Decompressed, Entry, Origin, RecordFormat};

/// Cell value of a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    Absent,
    Bytes(Bytes),
    Count(u64),
    Real(f64),
}

/// Data type of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes,
    Text,
    Count,
    Real,
}

/// Field of an entry that is stored in a column.
#[derive(Debug, Clone, Copy)]
enum Field {
    Key,
    Size,
    Version,
    Modified,
    Encoding,
    Codec,
    Format,
    Records,
    Digest(Algorithm),
    PartDigests,
    DecompressedSize,
    DecompressedDigest(Algorithm),
    OriginKey,
    OriginSize,
    OriginVersion,
    OriginEncoding,
    OriginDigest(Algorithm),
    OriginChecked,
    OriginDecoded,
    OriginCodecSource,
    OriginEncoded,
    OriginTransform,
    OriginModified,
}

#[derive(Debug, Clone)]
pub(super) struct Column {
    pub name: String,
    pub kind: Kind,
    pub required: bool,
    field: Field,
}

const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::Crc32,
    Algorithm::Crc32c,
    Algorithm::Crc64Nvme,
    Algorithm::Sha1,
    Algorithm::Sha256,
    Algorithm::Md5,
    Algorithm::Xxh3,
];

/// Returns all columns. A column that creates a part of an entry (for example, its origin) comes before the columns
/// that add to this part.
pub(super) fn columns() -> Vec<Column> {
    let mut all = Vec::with_capacity(40);
    let mut add = |name: &str, kind, required, field| all.push(Column { name: name.to_owned(), kind, required, field });
    add("key", Kind::Bytes, true, Field::Key);
    add("size", Kind::Count, true, Field::Size);
    add("version", Kind::Text, false, Field::Version);
    add("modified_s", Kind::Real, false, Field::Modified);
    add("encoding", Kind::Text, false, Field::Encoding);
    add("codec", Kind::Text, true, Field::Codec);
    add("format", Kind::Text, true, Field::Format);
    add("records", Kind::Count, false, Field::Records);
    for algorithm in ALGORITHMS {
        add(algorithm.name(), Kind::Bytes, false, Field::Digest(algorithm));
    }
    add("digests_of_parts", Kind::Text, false, Field::PartDigests);
    add("decompressed_size", Kind::Count, false, Field::DecompressedSize);
    for algorithm in ALGORITHMS {
        add(&format!("decompressed_{}", algorithm.name()), Kind::Bytes, false, Field::DecompressedDigest(algorithm));
    }
    add("origin_key", Kind::Bytes, false, Field::OriginKey);
    add("origin_size", Kind::Count, false, Field::OriginSize);
    add("origin_version", Kind::Text, false, Field::OriginVersion);
    add("origin_encoding", Kind::Text, false, Field::OriginEncoding);
    for algorithm in ALGORITHMS {
        add(&format!("origin_{}", algorithm.name()), Kind::Bytes, false, Field::OriginDigest(algorithm));
    }
    add("origin_checked", Kind::Text, false, Field::OriginChecked);
    add("origin_decoded", Kind::Text, false, Field::OriginDecoded);
    add("origin_codec_source", Kind::Text, false, Field::OriginCodecSource);
    add("origin_encoded", Kind::Text, false, Field::OriginEncoded);
    add("origin_transform", Kind::Text, false, Field::OriginTransform);
    add("origin_modified_s", Kind::Real, false, Field::OriginModified);
    all
}

fn text(text: &str) -> Cell {
    Cell::Bytes(Bytes::copy_from_slice(text.as_bytes()))
}

fn digest(digests: &[Digest], algorithm: Algorithm) -> Cell {
    match digests.iter().find(|digest| digest.algorithm == algorithm) {
        Some(digest) => Cell::Bytes(Bytes::copy_from_slice(&digest.value)),
        None => Cell::Absent,
    }
}

/// Formats digests as `algorithm:hex`, separated by spaces.
fn words<'a>(digests: impl Iterator<Item = &'a Digest>) -> Cell {
    match digests.map(Digest::to_string).collect::<Vec<_>>() {
        words if words.is_empty() => Cell::Absent,
        words => text(&words.join(" ")),
    }
}

fn of_words(text: &str) -> impl Iterator<Item = Option<Digest>> {
    text.split(' ').filter(|word| !word.is_empty()).map(|word| word.parse().ok())
}

fn codec_source_name(source: CodecSource) -> &'static str {
    match source {
        CodecSource::Suffix => "suffix",
        CodecSource::Header => "header",
        CodecSource::Content => "content",
    }
}

/// Columns whose names differ in version 1, as (old name, new name). Version 1 also used the prefix `inflated_` for
/// `decompressed_`.
const RENAMED: [(&str, &str); 4] = [
    ("origin_undone", "origin_decoded"),
    ("origin_undone_by", "origin_codec_source"),
    ("origin_packed", "origin_encoded"),
    ("origin_asked", "origin_transform"),
];

impl Column {
    /// True if `name` is the column's name or its name in version 1.
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name
            || RENAMED.contains(&(name, self.name.as_str()))
            || name
                .strip_prefix("inflated_")
                .is_some_and(|digest| self.name.strip_prefix("decompressed_") == Some(digest))
    }

    /// Returns this column's cell for an entry.
    pub fn get(&self, entry: &Entry) -> Cell {
        let optional = |value: Option<Cell>| value.unwrap_or(Cell::Absent);
        let origin = entry.origin.as_deref();
        let decompressed = entry.decompressed.as_deref();
        match self.field {
            Field::Key => Cell::Bytes(Bytes::copy_from_slice(entry.key.as_bytes())),
            Field::Size => Cell::Count(entry.size),
            Field::Version => optional(entry.version.as_ref().map(|version| text(&version.0))),
            Field::Modified => optional(entry.modified_s.map(Cell::Real)),
            Field::Encoding => optional(entry.encoding.as_deref().map(text)),
            Field::Codec => text(entry.codec.name()),
            Field::Format => text(entry.format.name()),
            Field::Records => optional(entry.records.map(Cell::Count)),
            Field::Digest(algorithm) => digest(&entry.digests, algorithm),
            Field::PartDigests => {
                words(entry.digests.iter().filter(|digest| matches!(digest.algorithm, Algorithm::Parts(..))))
            }
            Field::DecompressedSize => optional(decompressed.map(|content| Cell::Count(content.size))),
            Field::DecompressedDigest(algorithm) => {
                optional(decompressed.map(|content| digest(&content.digests, algorithm)))
            }
            Field::OriginKey => {
                optional(origin.map(|origin| Cell::Bytes(Bytes::copy_from_slice(origin.key.as_bytes()))))
            }
            Field::OriginSize => optional(origin.map(|origin| Cell::Count(origin.size))),
            Field::OriginVersion => {
                optional(origin.and_then(|origin| origin.version.as_ref()).map(|version| text(&version.0)))
            }
            Field::OriginEncoding => optional(origin.and_then(|origin| origin.encoding.as_deref()).map(text)),
            Field::OriginDigest(algorithm) => optional(origin.map(|origin| digest(&origin.digests, algorithm))),
            Field::OriginChecked => optional(origin.map(|origin| words(origin.checked.iter()))),
            Field::OriginDecoded => optional(
                origin.filter(|origin| origin.decoded != Codec::None).map(|origin| text(origin.decoded.name())),
            ),
            Field::OriginCodecSource => {
                optional(origin.and_then(|origin| origin.codec_source).map(|source| text(codec_source_name(source))))
            }
            Field::OriginEncoded => {
                let encoded = origin.map(|origin| origin.encoded).filter(|encoded| *encoded != Codec::None);
                optional(encoded.map(|encoded| text(encoded.name())))
            }
            Field::OriginTransform => optional(origin.and_then(|origin| origin.transform.as_deref()).map(text)),
            Field::OriginModified => optional(origin.and_then(|origin| origin.modified_s).map(Cell::Real)),
        }
    }

    /// Stores a cell in the entry. The error text states why the cell is invalid.
    pub fn set(&self, entry: &mut Entry, cell: Cell) -> Result<(), String> {
        let bad = |what: &str| format!("has a cell of `{}` that {what}", self.name);
        let text = |bytes: &Bytes| match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(bad("is not UTF-8")),
        };
        let no_origin = || bad("needs an `origin_key` in the same row");
        match (self.field, cell) {
            (_, Cell::Absent) if self.required => return Err(bad("is empty")),
            (_, Cell::Absent) => {}
            (Field::Key, Cell::Bytes(key)) => entry.key = Key::new(key),
            (Field::Size, Cell::Count(size)) => entry.size = size,
            (Field::Version, Cell::Bytes(version)) => entry.version = Some(Version(text(&version)?)),
            (Field::Modified, Cell::Real(modified)) => entry.modified_s = Some(modified),
            (Field::Encoding, Cell::Bytes(encoding)) => entry.encoding = Some(text(&encoding)?),
            (Field::Codec, Cell::Bytes(codec)) => {
                entry.codec = text(&codec)?.parse().map_err(|_| bad("is not a valid codec"))?;
            }
            (Field::Format, Cell::Bytes(format)) => {
                let named = RecordFormat::ALL.into_iter().find(|known| known.name().as_bytes() == &format[..]);
                entry.format = named.ok_or_else(|| bad("is not a valid record format"))?;
            }
            (Field::Records, Cell::Count(records)) => entry.records = Some(records),
            (Field::Digest(algorithm), Cell::Bytes(value)) => {
                entry.digests.reserve_exact(1);
                entry.digests.push(Digest { algorithm, value: value.to_vec() });
            }
            (Field::PartDigests, Cell::Bytes(words)) => {
                for digest in of_words(&text(&words)?) {
                    entry.digests.push(digest.ok_or_else(|| bad("is not a valid list of digests"))?);
                }
            }
            (Field::DecompressedSize, Cell::Count(size)) => {
                entry.decompressed = Some(Box::new(Decompressed { size, digests: Vec::new() }));
            }
            (Field::DecompressedDigest(algorithm), Cell::Bytes(value)) => {
                let content =
                    entry.decompressed.as_mut().ok_or_else(|| bad("needs a `decompressed_size` in the same row"))?;
                content.digests.push(Digest { algorithm, value: value.to_vec() });
            }
            (Field::OriginKey, Cell::Bytes(key)) => {
                entry.origin = Some(Box::new(Origin::of(&Entry::new(Key::new(key), 0))));
            }
            (Field::OriginSize, Cell::Count(size)) => entry.origin.as_mut().ok_or_else(no_origin)?.size = size,
            (Field::OriginVersion, Cell::Bytes(version)) => {
                entry.origin.as_mut().ok_or_else(no_origin)?.version = Some(Version(text(&version)?));
            }
            (Field::OriginEncoding, Cell::Bytes(encoding)) => {
                entry.origin.as_mut().ok_or_else(no_origin)?.encoding = Some(text(&encoding)?);
            }
            (Field::OriginDigest(algorithm), Cell::Bytes(value)) => {
                let origin = entry.origin.as_mut().ok_or_else(no_origin)?;
                origin.digests.push(Digest { algorithm, value: value.to_vec() });
            }
            (Field::OriginChecked, Cell::Bytes(checked)) => {
                let origin = entry.origin.as_mut().ok_or_else(no_origin)?;
                for digest in of_words(&text(&checked)?) {
                    origin.checked.push(digest.ok_or_else(|| bad("is not a valid list of digests"))?);
                }
            }
            (Field::OriginDecoded, Cell::Bytes(codec)) => {
                let origin = entry.origin.as_mut().ok_or_else(no_origin)?;
                origin.decoded = text(&codec)?.parse().map_err(|_| bad("is not a valid codec"))?;
            }
            (Field::OriginCodecSource, Cell::Bytes(source)) => {
                let origin = entry.origin.as_mut().ok_or_else(no_origin)?;
                let known = [CodecSource::Suffix, CodecSource::Header, CodecSource::Content];
                let named = known.into_iter().find(|known| codec_source_name(*known).as_bytes() == &source[..]);
                origin.codec_source = Some(named.ok_or_else(|| bad("is not one of suffix, header and content"))?);
            }
            (Field::OriginEncoded, Cell::Bytes(codec)) => {
                let origin = entry.origin.as_mut().ok_or_else(no_origin)?;
                origin.encoded = text(&codec)?.parse().map_err(|_| bad("is not a valid codec"))?;
            }
            (Field::OriginTransform, Cell::Bytes(transform)) => {
                entry.origin.as_mut().ok_or_else(no_origin)?.transform = Some(normal_transform(text(&transform)?));
            }
            (Field::OriginModified, Cell::Real(modified)) => {
                entry.origin.as_mut().ok_or_else(no_origin)?.modified_s = Some(modified);
            }
            (_, Cell::Bytes(_) | Cell::Count(_) | Cell::Real(_)) => return Err(bad("has the wrong type")),
        }
        Ok(())
    }
}
