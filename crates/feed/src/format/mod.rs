// SPDX-License-Identifier: Apache-2.0
//! Formats: the bytes of a dataset become records (framing), and a record becomes named values (payload).
//!
//! Owns the format of a dataset and its document. A format works on bytes in memory; fetching, decompression and the
//! destination of values belong to other modules.

pub(super) mod array_rows;
mod detect;
mod files;
mod fixed;
mod hdf5;
mod mds;
mod npy;
mod parquet;
mod tar;
mod tfrecord;
pub(super) mod zarr;

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use penstock_codec::Codec;
use penstock_record::tfrecord::FrameStream;
use penstock_types::{Error, Key, Result, with_separators};
use serde::{Deserialize, Serialize};

pub use detect::keep_likely;
pub use files::Labels;
pub use fixed::Column;
pub use hdf5::{Array as Hdf5Array, File as Hdf5File};
pub use zarr::ZarrMetadata;

use super::chunked_arrays::Blocks;
use super::memory::PartHold;
use super::value::Value;
use penstock_dataset::manifest::{Manifest, RecordFormat, codec_text};
use penstock_dataset::record_index::Span;

/// A format and its settings, as Python writes them and a pickled dataset keeps them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase", deny_unknown_fields)]
pub enum FormatSpec {
    /// TFRecords of tf.Example or tf.SequenceExample.
    TfRecord {
        /// Codec of objects whose names do not state it.
        #[serde(default, skip_serializing_if = "is_none", with = "codec_text")]
        compression: Codec,
    },
    /// Records of fixed size with concatenated columns.
    Fixed {
        /// Bytes before the first record.
        #[serde(default)]
        header_bytes: u64,
        /// The columns, in order.
        columns: Vec<Column>,
    },
    /// A flat file of tokens, read as windows.
    Tokens {
        /// Bytes before the first token.
        #[serde(default)]
        header_bytes: u64,
        /// Element type of a token.
        dtype: String,
        /// Tokens in a window.
        length: u64,
        /// Tokens from one window's start to the next's.
        stride: u64,
    },
    /// NumPy arrays, one per object.
    Npy {
        /// The rows of each array are the records.
        #[serde(default)]
        rows: bool,
    },
    /// NumPy archives: one record of several arrays per object.
    Npz {},
    /// WebDataset: tar archives in which the members of one key form a record.
    Tar {},
    /// MosaicML's MDS shards.
    Mds {
        /// Text of their `index.json`; read when the dataset is opened.
        #[serde(default)]
        index: Option<String>,
    },
    /// Parquet: rows are records, columns are their values.
    Parquet {},
    /// Files, one record each: JPEG and PNG images in class folders.
    Images {
        /// File that lists the labels.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<Labels>,
    },
    /// Zarr arrays; their rows are the records.
    Zarr {
        /// Names of the arrays of a group; empty for all.
        #[serde(default)]
        arrays: Vec<String>,
        /// Metadata, read when the dataset is opened.
        #[serde(default, alias = "told")]
        metadata: Option<ZarrMetadata>,
    },
    /// Datasets of HDF5 files; their rows are the records.
    Hdf5 {
        /// Names of the datasets.
        datasets: Vec<String>,
        /// Positions of their chunks, read by h5py when the dataset is opened.
        #[serde(default)]
        files: Option<Vec<Hdf5File>>,
    },
}

impl FormatSpec {
    /// Parses the document that Python writes.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| Error::config("format", format!("it cannot be parsed: {error}")))
    }

    /// The document.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::bug(format!("a format cannot be serialised: {error}")))
    }

    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TfRecord { .. } => "tfrecord",
            Self::Fixed { .. } => "fixed",
            Self::Tokens { .. } => "tokens",
            Self::Npy { .. } => "npy",
            Self::Npz {} => "npz",
            Self::Tar {} => "tar",
            Self::Images { .. } => "images",
            Self::Parquet {} => "parquet",
            Self::Mds { .. } => "mds",
            Self::Zarr { .. } => "zarr",
            Self::Hdf5 { .. } => "hdf5",
        }
    }

    /// Whether an object with that (logical) name holds records of this format; `None` if names do not show it.
    fn claims(&self, name: &[u8]) -> Option<bool> {
        let ends = |suffixes: &[&[u8]]| Some(suffixes.iter().any(|suffix| name.to_ascii_lowercase().ends_with(suffix)));
        match self {
            Self::TfRecord { .. } => Some(RecordFormat::of_name(name) == RecordFormat::TfRecord),
            Self::Npy { .. } => ends(&[b".npy"]),
            Self::Npz {} => ends(&[b".npz"]),
            // `.tgz` counts as one suffix, from which no codec is removed.
            Self::Tar {} => ends(&[b".tar", b".tgz"]),
            Self::Parquet {} => ends(&[b".parquet"]),
            Self::Images { .. } => ends(&[b".jpg", b".jpeg", b".png"]),
            // Other codecs of Streaming are refused by name once the index is read.
            Self::Mds { .. } => ends(&[b".mds", b".mds.zstd", b".mds.br", b".mds.bz2", b".mds.snappy"]),
            Self::Hdf5 { .. } => ends(&[b".h5", b".hdf5", b".he5"]),
            Self::Fixed { .. } | Self::Tokens { .. } | Self::Zarr { .. } => None,
        }
    }

    /// TFRecords, compressed as their names state.
    pub const TFRECORD: Self = Self::TfRecord { compression: Codec::None };

    /// Format of a listing by its names, if they state one: the first format in a fixed order that any name matches. A
    /// tar beside an image is probably an archive of images; tables and arrays beside larger images probably describe
    /// them.
    pub fn of_names(manifest: &Manifest) -> Result<Option<Self>> {
        // Chunks may have any name.
        if zarr::is_zarr(manifest) {
            return Ok(Some(Self::Zarr { arrays: Vec::new(), metadata: None }));
        }
        let (npy, images) = (Self::Npy { rows: false }, Self::Images { labels: None });
        let claimed = |format: &Self| -> u64 {
            let claimed = manifest.objects.iter().filter(|entry| format.claims(entry.logical_name()) == Some(true));
            // The name of an empty object counts too.
            claimed.map(|entry| 1 + entry.size).sum()
        };
        let pictures = claimed(&images);
        for format in [Self::TFRECORD, Self::Tar {}, Self::Mds { index: None }] {
            if claimed(&format) > 0 {
                return Ok(Some(format));
            }
        }
        for format in [npy, Self::Npz {}, Self::Parquet {}] {
            if claimed(&format) > pictures {
                return Ok(Some(format));
            }
        }
        if claimed(&Self::Hdf5 { datasets: Vec::new(), files: None }) > pictures {
            return Err(unnamed_hdf5(&manifest.url));
        }
        if pictures > 0 {
            return Ok(Some(images));
        }
        Ok(is_streaming(manifest).then_some(Self::Mds { index: None }))
    }

    /// The key of the object with the rest of the format's metadata; see [`FormatSpec::resolved`].
    pub fn metadata_object(&self) -> Option<&'static str> {
        matches!(self, Self::Mds { index: None }).then_some(mds::INDEX)
    }

    /// The format with the content of that object.
    pub fn resolved(self, content: &[u8], place: &str) -> Result<Self> {
        match self {
            Self::Mds { .. } => {
                let index = std::str::from_utf8(content).map_err(|_| Error::corrupt(place, "is not UTF-8"))?;
                mds::names(index, place)?;
                Ok(Self::Mds { index: Some(index.to_owned()) })
            }
            other => Ok(other),
        }
    }

    /// Checks that a listing has all objects of the format's own index.
    pub fn check_listing(&self, manifest: &Manifest) -> Result<()> {
        let Self::Mds { index: Some(index) } = self else { return Ok(()) };
        let known: HashSet<&[u8]> = manifest.objects.iter().map(|entry| entry.key.as_bytes()).collect();
        let names = mds::names(index, mds::INDEX)?;
        let missing: Vec<&String> = names.iter().filter(|name| !known.contains(name.as_bytes())).collect();
        let Some(first) = missing.first() else { return Ok(()) };
        let (missing, listed) = (with_separators(missing.len() as u64), with_separators(names.len() as u64));
        let place =
            format!("{}{first} ({missing} of the {listed} shards that index.json lists are missing)", manifest.url);
        Err(Error::NotFound { place })
    }

    /// Units that the order treats as objects, if they are not those of the listing.
    pub fn ordered(&self, listing: &Manifest) -> Result<Option<Manifest>> {
        Ok(self.blocks(listing)?.map(|blocks| blocks.manifest(listing)))
    }

    /// The blocks of a format of chunked arrays; none before its metadata are read.
    pub(super) fn blocks(&self, listing: &Manifest) -> Result<Option<Blocks>> {
        Ok(match self {
            Self::Zarr { arrays, metadata } => Some(match metadata {
                Some(metadata) => zarr::blocks(arrays, metadata, listing)?,
                None => Blocks::default(),
            }),
            Self::Hdf5 { datasets, files } => Some(match files {
                Some(files) => hdf5::blocks(datasets, files, listing)?,
                None => Blocks::default(),
            }),
            _ => None,
        })
    }

    /// True for the format's own index, which holds no records and is not ignored either.
    pub(super) fn is_index(&self, key: &Key) -> bool {
        matches!(self, Self::Mds { .. }) && key.as_bytes() == mds::INDEX.as_bytes()
    }

    /// Keeps the objects that hold records: if some names match the format, the others are removed.
    pub fn retain(&self, manifest: &mut Manifest) {
        if let Self::Mds { index: Some(index) } = self {
            // The index lists the objects; `retain` gets a listing with more.
            let names = mds::names(index, mds::INDEX).unwrap_or_default();
            manifest.objects.retain(|entry| names.iter().any(|name| name.as_bytes() == entry.key.as_bytes()));
            return;
        }
        let claims: Vec<Option<bool>> =
            manifest.objects.iter().map(|entry| self.claims(entry.logical_name())).collect();
        if claims.contains(&Some(true)) {
            let mut claims = claims.into_iter();
            manifest.objects.retain(|_| claims.next().flatten() == Some(true));
        }
    }
}

/// The error of HDF5 files without the names of their datasets.
fn unnamed_hdf5(place: &str) -> Error {
    Error::config("format", format!("{place} contains HDF5 files; name the dataset: penstock.formats.hdf5(\"/name\")"))
}

/// True for shards of MosaicML Streaming's other formats, which share the index of MDS: each has a file of offsets
/// beside it.
fn is_streaming(manifest: &Manifest) -> bool {
    let has = |ends: &[u8]| manifest.objects.iter().any(|entry| entry.key.as_bytes().ends_with(ends));
    has(mds::INDEX.as_bytes()) && [&b".json.meta"[..], b".csv.meta", b".tsv.meta", b".xsv.meta"].into_iter().any(has)
}

fn is_none(codec: &Codec) -> bool {
    *codec == Codec::None
}

/// Identifies the record being read, for names and messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordId<'a> {
    /// The object's URL.
    pub place: &'a str,
    /// Its number in the dataset.
    pub object: u64,
    /// Number of the record in the object.
    pub record: u64,
    /// Offset of the record.
    pub offset: u64,
    /// Memory that is reserved before a part is decompressed.
    pub memory: &'a PartHold<'a>,
}

/// A record whose values are not read yet.
pub(crate) trait Record {
    /// Reads the value of that name. Errs with `Corrupt`.
    fn part(&self, name: &str) -> Result<Option<Value<'_>>>;
    /// The names of its parts.
    fn names(&self) -> Vec<String>;
    /// True if other records of the dataset may have values that this one lacks.
    fn may_lack_parts(&self) -> bool {
        false
    }
}

/// Callback for a record.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&dyn Record) -> Result<()>;

/// Number of records, from the end of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrailerCount {
    /// This number of records.
    Count(u64),
    /// Nothing yet: this many of the last bytes are needed.
    Wants(u64),
}

/// Callback for a record of a table, with its position among the requested ones.
pub(crate) type EachRow<'a> = &'a mut dyn FnMut(usize, Result<&dyn Record>);

/// An object in memory whose records are not contiguous.
pub(crate) trait Table {
    /// Number of its records.
    fn records(&self) -> u64;

    /// Reads `records` (ascending), of which the values `parts` (each by the first of its names that exists) will be
    /// requested. The result for a record depends on the object alone, not on the other records. Decodes at most
    /// `limit` bytes at a time.
    fn each(&self, records: &[u64], parts: &[&[String]], limit: u64, each: EachRow<'_>);
}

/// Contiguous records of one size after a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadRows {
    /// Bytes before the first.
    pub head: u64,
    /// Bytes of each.
    pub row: u64,
    /// Number of rows.
    pub count: u64,
}

impl HeadRows {
    /// Position of a row.
    pub fn span(&self, row: u64) -> Option<Span> {
        (row < self.count).then(|| Span { offset: self.head + row * self.row, len: self.row, crc: 0 })
    }
}

/// A format whose objects hold contiguous records, or are tables.
pub(crate) trait Framing: Send + Sync + fmt::Debug {
    /// Appends the positions of an object's records. After an error, the spans before it are valid.
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()>;

    /// For a format that frames its records: the incremental reader of an object's decompressed bytes, given the first
    /// of them. Errs if they are not of this format.
    fn frames(&self, _first: &[u8], _place: &str) -> Option<Result<FrameStream>> {
        None
    }

    /// Number of records in an object of that many bytes, if the size determines it.
    fn count_of_size(&self, _bytes: u64, _place: &str) -> Option<Result<u64>> {
        None
    }

    /// Number of records in an object, if the format's own index contains it.
    fn count_of_object(&self, _object: u64) -> Option<u64> {
        None
    }

    /// Number of an object's first bytes that contain its number of records, if they do.
    fn head_for_count(&self) -> Option<u64> {
        None
    }

    /// Positions of the records of an object of `size` bytes, by its first bytes.
    fn rows_of_head(&self, _head: &[u8], _size: u64, place: &str) -> Result<HeadRows> {
        Err(Error::bug(format!("the head of {place} contains no count")))
    }

    /// Position of a record, if it can be computed.
    fn span_of(&self, _record: u64) -> Option<Span> {
        None
    }

    /// The checksum that an index keeps of a record, given its bytes.
    fn crc(&self, bytes: &[u8]) -> u32 {
        penstock_codec::checksum::crc32c(bytes)
    }

    /// True if records have checksums, which `read` compares.
    fn checks_itself(&self) -> bool {
        false
    }

    /// Reads a record, given the bytes of its span, and the object's bytes before its first record.
    fn read(&self, bytes: &[u8], head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()>;

    /// True if values of a record are decompressed one by one, within [`RecordId::memory`].
    fn inflates_parts(&self) -> bool {
        false
    }

    /// True if reading a record needs the object's bytes before the first record.
    fn needs_head(&self) -> bool {
        false
    }

    /// True if objects are tables: they are always read whole, and spans are not requested.
    fn is_table(&self) -> bool {
        false
    }

    /// Parses an object's (decompressed) bytes as a table.
    fn table(&self, _content: Bytes, place: &str) -> Result<Box<dyn Table>> {
        Err(Error::bug(format!("{place} is not a table")))
    }

    /// Number of records in a table of `size` bytes, from its last bytes.
    fn count_of_end(&self, _end: &[u8], _size: u64, place: &str) -> Result<TrailerCount> {
        Err(Error::bug(format!("the end of {place} contains no count")))
    }

    /// Proposed field of a part if no fields are given; by default from its content.
    fn proposes(&self, _name: &str, _part: &Value<'_>) -> Option<super::field::Kind> {
        None
    }
}

/// The format of `spec` over these objects.
pub(crate) fn framing(spec: &FormatSpec, manifest: &Manifest) -> Result<Box<dyn Framing>> {
    Ok(match spec {
        FormatSpec::TfRecord { .. } => Box::new(tfrecord::TfRecord),
        FormatSpec::Fixed { header_bytes, columns } => Box::new(fixed::Fixed::new(*header_bytes, columns)?),
        FormatSpec::Tokens { header_bytes, dtype, length, stride } => {
            Box::new(fixed::Tokens::new(*header_bytes, dtype, *length, *stride)?)
        }
        FormatSpec::Npy { rows } => Box::new(npy::Npy { rows: *rows }),
        FormatSpec::Npz {} => Box::new(npy::Npz),
        FormatSpec::Tar {} => Box::new(tar::Tar),
        FormatSpec::Mds { index } => Box::new(mds::Mds::new(index.as_deref().unwrap_or_default(), manifest)?),
        FormatSpec::Parquet {} => Box::new(parquet::Parquet),
        FormatSpec::Images { labels } => Box::new(files::Files::new(manifest, labels.as_ref())?),
        FormatSpec::Zarr { .. } | FormatSpec::Hdf5 { .. } => {
            return Err(Error::bug("arrays are framed by their blocks"));
        }
    })
}
