// SPDX-License-Identifier: Apache-2.0
//! Formats: how the bytes of a dataset become records (framing) and a record its named parts (payload).
//!
//! Owns which format a dataset is in and the document that says it. A format works on bytes in memory: what is fetched,
//! how it is inflated and where its parts go is the business of others.

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
use super::value::Part;
use penstock_dataset::manifest::{Manifest, RecordFormat, codec_text};
use penstock_dataset::record_index::Span;

/// A format and its facts, as Python says them and a pickled dataset keeps them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase", deny_unknown_fields)]
pub enum FormatSpec {
    /// TFRecords of tf.Example or tf.SequenceExample.
    TfRecord {
        /// How objects are compressed whose names do not say it.
        #[serde(default, skip_serializing_if = "is_none", with = "codec_text")]
        compression: Codec,
    },
    /// Records of one size, their columns end to end.
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
    /// NumPy arrays, one an object.
    Npy {
        /// The rows of each array are the records.
        #[serde(default)]
        rows: bool,
    },
    /// NumPy archives: one record of several arrays an object.
    Npz {},
    /// WebDataset: tar archives whose members of one key are a record.
    Tar {},
    /// MosaicML's MDS shards.
    Mds {
        /// The text of their `index.json`; read when the dataset is opened.
        #[serde(default)]
        index: Option<String>,
    },
    /// Parquet: the rows are the records, the columns their parts.
    Parquet {},
    /// Files, one record each: JPEG and PNG images in class folders.
    Images {
        /// A file beside them that says their labels.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<Labels>,
    },
    /// Zarr arrays, whose rows are the records.
    Zarr {
        /// Which arrays of a group; all, where none is named.
        #[serde(default)]
        arrays: Vec<String>,
        /// Metadata, read when the dataset is opened.
        #[serde(default, alias = "told")]
        metadata: Option<ZarrMetadata>,
    },
    /// Datasets of HDF5 files, whose rows are the records.
    Hdf5 {
        /// Which datasets.
        datasets: Vec<String>,
        /// Where their chunks lie; read by h5py when the dataset is opened.
        #[serde(default)]
        files: Option<Vec<Hdf5File>>,
    },
}

impl FormatSpec {
    /// Reads what Python says.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| Error::config("format", format!("does not read: {error}")))
    }

    /// The document.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::bug(format!("a format does not serialise: {error}")))
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

    /// Whether an object of that (logical) name holds records of this format; `None` if names do not show it.
    fn claims(&self, name: &[u8]) -> Option<bool> {
        let ends = |suffixes: &[&[u8]]| Some(suffixes.iter().any(|suffix| name.to_ascii_lowercase().ends_with(suffix)));
        match self {
            Self::TfRecord { .. } => Some(RecordFormat::of_name(name) == RecordFormat::TfRecord),
            Self::Npy { .. } => ends(&[b".npy"]),
            Self::Npz {} => ends(&[b".npz"]),
            // `.tgz` is a suffix of its own, which no codec takes off.
            Self::Tar {} => ends(&[b".tar", b".tgz"]),
            Self::Parquet {} => ends(&[b".parquet"]),
            Self::Images { .. } => ends(&[b".jpg", b".jpeg", b".png"]),
            // What Streaming compresses otherwise is refused by name once the index is read.
            Self::Mds { .. } => ends(&[b".mds", b".mds.zstd", b".mds.br", b".mds.bz2", b".mds.snappy"]),
            Self::Hdf5 { .. } => ends(&[b".h5", b".hdf5", b".he5"]),
            Self::Fixed { .. } | Self::Tokens { .. } | Self::Zarr { .. } => None,
        }
    }

    /// TFRecords that are compressed as their names say.
    pub const TFRECORD: Self = Self::TfRecord { compression: Codec::None };

    /// The format that the names of a listing say, if they say one: the first of a stated row that some name claims. A
    /// tar beside an image is an archive of them more likely than not; tables and arrays beside larger images are about
    /// them.
    pub fn of_names(manifest: &Manifest) -> Result<Option<Self>> {
        // Chunks go by any name.
        if zarr::is_zarr(manifest) {
            return Ok(Some(Self::Zarr { arrays: Vec::new(), metadata: None }));
        }
        let (npy, images) = (Self::Npy { rows: false }, Self::Images { labels: None });
        let claimed = |format: &Self| -> u64 {
            let claimed = manifest.objects.iter().filter(|entry| format.claims(entry.logical_name()) == Some(true));
            // An empty object's name counts too.
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

    /// The format once that object is read.
    pub fn resolved(self, content: &[u8], place: &str) -> Result<Self> {
        match self {
            Self::Mds { .. } => {
                let index = std::str::from_utf8(content).map_err(|_| Error::corrupt(place, "is no UTF-8"))?;
                mds::names(index, place)?;
                Ok(Self::Mds { index: Some(index.to_owned()) })
            }
            other => Ok(other),
        }
    }

    /// Checks that the objects which the format's own index lists are in a whole listing.
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

    /// True for the format's own index, which is not an object of records and not left aside either.
    pub(super) fn is_index(&self, key: &Key) -> bool {
        matches!(self, Self::Mds { .. }) && key.as_bytes() == mds::INDEX.as_bytes()
    }

    /// Leaves the objects that hold records: where some names say that they do, the others are put aside.
    pub fn retain(&self, manifest: &mut Manifest) {
        if let Self::Mds { index: Some(index) } = self {
            // The index says which objects there are; `retain` is asked of a listing that holds more.
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
    Error::config("format", format!("{place} holds HDF5 files: say which dataset, penstock.formats.hdf5(\"/name\")"))
}

/// True for shards of MosaicML Streaming's other formats, whose index is MDS's: each has a file of offsets beside it.
fn is_streaming(manifest: &Manifest) -> bool {
    let has = |ends: &[u8]| manifest.objects.iter().any(|entry| entry.key.as_bytes().ends_with(ends));
    has(mds::INDEX.as_bytes()) && [&b".json.meta"[..], b".csv.meta", b".tsv.meta", b".xsv.meta"].into_iter().any(has)
}

fn is_none(codec: &Codec) -> bool {
    *codec == Codec::None
}

/// Which record is read, for names and messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordId<'a> {
    /// The object's URL.
    pub place: &'a str,
    /// Its number in the dataset.
    pub object: u64,
    /// Which of its records.
    pub record: u64,
    /// Where the record begins.
    pub offset: u64,
    /// Memory that is reserved before a part is decompressed.
    pub memory: &'a PartHold<'a>,
}

/// A record, its parts not read yet.
pub(crate) trait Record {
    /// The part of that name. Errs with `Corrupt`.
    fn part(&self, name: &str) -> Result<Option<Part<'_>>>;
    /// The names of its parts.
    fn names(&self) -> Vec<String>;
    /// True where other records of the dataset may have parts that this one lacks.
    fn may_lack_parts(&self) -> bool {
        false
    }
}

/// Callback for a record.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&dyn Record) -> Result<()>;

/// Number of records, from the end of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrailerCount {
    /// So many.
    Count(u64),
    /// Nothing yet: this many of the last bytes are needed.
    Wants(u64),
}

/// Callback for a record of a table, with its position among the requested ones.
pub(crate) type EachRow<'a> = &'a mut dyn FnMut(usize, Result<&dyn Record>);

/// An object in memory whose records do not lie one after another.
pub(crate) trait Table {
    /// How many records it holds.
    fn records(&self) -> u64;

    /// Reads `records`, which ascend, and of which these `parts` (each the first of its names that is there) will be asked
    /// for. What becomes of a record depends on the object alone, not on which others are asked for. At most `limit`
    /// bytes are decoded at a time.
    fn each(&self, records: &[u64], parts: &[&[String]], limit: u64, each: EachRow<'_>);
}

/// Records of one size, one after another behind a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadRows {
    /// Bytes before the first.
    pub head: u64,
    /// Bytes of each.
    pub row: u64,
    /// How many there are.
    pub count: u64,
}

impl HeadRows {
    /// Where a row lies.
    pub fn span(&self, row: u64) -> Option<Span> {
        (row < self.count).then(|| Span { offset: self.head + row * self.row, len: self.row, crc: 0 })
    }
}

/// A format whose objects hold their records one after another, or are tables.
pub(crate) trait Framing: Send + Sync + fmt::Debug {
    /// Appends where the records of an object lie. On an error, the ones before it are valid.
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()>;

    /// Of a format that frames its records: the reader of an object's inflated bytes as they pass by, given the first of
    /// them. Errs where those are not of this format.
    fn frames(&self, _first: &[u8], _place: &str) -> Option<Result<FrameStream>> {
        None
    }

    /// Number of records in an object of that many bytes, if the size determines it.
    fn count_of_size(&self, _bytes: u64, _place: &str) -> Option<Result<u64>> {
        None
    }

    /// How many records an object holds, where the format's own index says so.
    fn count_of_object(&self, _object: u64) -> Option<u64> {
        None
    }

    /// Number of an object's first bytes that contain its number of records, if they do.
    fn head_for_count(&self) -> Option<u64> {
        None
    }

    /// Where the records of an object of `size` bytes lie, by its first bytes.
    fn rows_of_head(&self, _head: &[u8], _size: u64, place: &str) -> Result<HeadRows> {
        Err(Error::bug(format!("the head of {place} holds no count")))
    }

    /// Where a record lies, where that is arithmetic.
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

    /// True where parts of a record are decompressed one by one, within [`RecordId::memory`].
    fn inflates_parts(&self) -> bool {
        false
    }

    /// True where records cannot be read without the object's bytes before the first.
    fn needs_head(&self) -> bool {
        false
    }

    /// True where objects are tables: whatever is wanted of one, all of it is read, and spans are not asked for.
    fn is_table(&self) -> bool {
        false
    }

    /// The table that an object's (inflated) bytes are.
    fn table(&self, _content: Bytes, place: &str) -> Result<Box<dyn Table>> {
        Err(Error::bug(format!("{place} is no table")))
    }

    /// Number of records in a table of `size` bytes, from its last bytes.
    fn count_of_end(&self, _end: &[u8], _size: u64, place: &str) -> Result<TrailerCount> {
        Err(Error::bug(format!("the end of {place} holds no count")))
    }

    /// Proposed field of a part if no fields are given; by default from its content.
    fn proposes(&self, _name: &str, _part: &Part<'_>) -> Option<super::field::Kind> {
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
