// SPDX-License-Identifier: Apache-2.0
//! Dataset formats. A format divides the bytes of an object into records (framing), and a record into named values
//! (payload).
//!
//! Owns the format of a dataset and its JSON document. A format works on bytes in memory. Other modules fetch and
//! decompress these bytes, and store the values.

pub(super) mod array_rows;
mod arrow;
mod csv;
mod files;
mod fixed;
mod hdf5;
pub(super) mod hive;
mod jsonl;
mod mds;
mod megatron;
mod npy;
mod parquet;
mod sniff;
mod tar;
mod tfrecord;
pub(super) mod zarr;

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use penstock_codec::Codec;
use penstock_record::magic;
use penstock_record::tfrecord::FrameStream;
use penstock_types::{Error, Key, Result, with_separators};
use serde::{Deserialize, Serialize};

pub use files::Labels;
pub use fixed::Column;
pub use hdf5::{Array as Hdf5Array, File as Hdf5File};
pub use sniff::keep_likely;
pub use zarr::ZarrMetadata;

use super::chunked_arrays::Blocks;
use super::chunked_arrays::PatchSpec;
use super::decode_memory::PartHold;
use super::value::Value;
use penstock_dataset::key_names::last_component;
use penstock_dataset::manifest::{Manifest, RecordFormat, codec_text};
use penstock_dataset::record_index::Span;

/// Format of a dataset with its settings. Python writes it, and a pickled dataset contains it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "lowercase", deny_unknown_fields)]
pub enum FormatSpec {
    /// TFRecords that contain tf.Example, tf.SequenceExample or any bytes.
    TfRecord {
        /// Codec of objects whose names have no codec suffix.
        #[serde(default, skip_serializing_if = "is_none", with = "codec_text")]
        compression: Codec,
    },
    /// Fixed-size records that consist of concatenated columns.
    Fixed {
        /// Number of bytes before the first record.
        #[serde(default)]
        header_bytes: u64,
        /// Columns of a record, in order.
        columns: Vec<Column>,
    },
    /// A flat file of tokens, which is read as windows.
    Tokens {
        /// Number of bytes before the first token.
        #[serde(default)]
        header_bytes: u64,
        /// Element type of a token.
        dtype: String,
        /// Number of tokens per window.
        length: u64,
        /// Number of tokens between the starts of two consecutive windows.
        stride: u64,
        /// Token that ends a document. If it is set, windows also have segment and position numbers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        eos: Option<i64>,
    },
    /// Megatron-LM's `.bin` files of tokens, each with an `.idx` file of the same name.
    Megatron {
        /// Element type of a token, which is read from an index when the dataset is opened.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dtype: Option<String>,
        /// Number of tokens per window; `None` if the records are documents.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length: Option<u64>,
        /// Number of tokens between the starts of two consecutive windows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stride: Option<u64>,
        /// Token that ends a document. If it is set, windows also have segment and position numbers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        eos: Option<i64>,
    },
    /// JSON lines: each line is a record.
    Jsonl {},
    /// Delimited text: each row is a record, and the columns are its values.
    Csv {
        /// Delimiter of the cells. The default is a tab for `.tsv` and a comma for other names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delimiter: Option<String>,
        /// True if the first row of each object contains the names of the columns.
        header: bool,
        /// Names of the columns. If empty, the names in the header are used.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        columns: Vec<String>,
    },
    /// Arrow IPC files and streams: each row is a record, and the columns are its values.
    Arrow {},
    /// NumPy arrays, one per object.
    Npy {
        /// True if each row of an array is a record; false if each array is one record.
        #[serde(default)]
        rows: bool,
    },
    /// NumPy archives: each object is one record of several arrays.
    Npz {},
    /// WebDataset: tar archives in which the members with the same key form a record.
    Tar {},
    /// MosaicML's MDS shards.
    Mds {
        /// Content of `index.json`, which is read when the dataset is opened.
        #[serde(default)]
        index: Option<String>,
    },
    /// Parquet: each row is a record, and the columns are its values.
    Parquet {},
    /// One file per record: images in class folders.
    Images {
        /// Content of the label file, if the dataset has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        labels: Option<Labels>,
    },
    /// One file of any kind per record.
    Files {},
    /// Zarr arrays: each row or patch is a record.
    Zarr {
        /// Names of the arrays to read from a group; empty to read all arrays.
        #[serde(default)]
        arrays: Vec<String>,
        /// Zarr metadata, which is read when the dataset is opened.
        #[serde(default, alias = "told")]
        metadata: Option<ZarrMetadata>,
        /// Patches into which the arrays are divided; `None` if the records are rows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patches: Option<PatchSpec>,
    },
    /// HDF5 datasets: each row or patch is a record.
    Hdf5 {
        /// Names of the HDF5 datasets in each file.
        datasets: Vec<String>,
        /// Positions of the HDF5 datasets' chunks, which h5py reads when the dataset is opened.
        #[serde(default)]
        files: Option<Vec<Hdf5File>>,
        /// Patches into which the HDF5 datasets are divided; `None` if the records are rows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patches: Option<PatchSpec>,
    },
}

impl FormatSpec {
    /// Parses the JSON document that Python writes.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| Error::config("format", format!("cannot be parsed: {error}")))
    }

    /// Returns the format as JSON.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::bug(format!("a format cannot be serialised: {error}")))
    }

    /// Name of the format in error messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TfRecord { .. } => "tfrecord",
            Self::Fixed { .. } => "fixed",
            Self::Tokens { .. } => "tokens",
            Self::Megatron { .. } => "megatron",
            Self::Jsonl {} => "jsonl",
            Self::Csv { .. } => "csv",
            Self::Arrow {} => "arrow",
            Self::Npy { .. } => "npy",
            Self::Npz {} => "npz",
            Self::Tar {} => "tar",
            Self::Images { .. } => "images",
            Self::Files {} => "files",
            Self::Parquet {} => "parquet",
            Self::Mds { .. } => "mds",
            Self::Zarr { .. } => "zarr",
            Self::Hdf5 { .. } => "hdf5",
        }
    }

    /// True if an object with this logical name contains records of this format. `None` if the format cannot be
    /// detected from names.
    fn claims(&self, name: &[u8]) -> Option<bool> {
        let ends = |suffixes: &[&[u8]]| Some(suffixes.iter().any(|suffix| name.to_ascii_lowercase().ends_with(suffix)));
        match self {
            Self::TfRecord { .. } => Some(RecordFormat::of_name(name) == RecordFormat::TfRecord),
            Self::Npy { .. } => ends(&[b".npy"]),
            Self::Npz {} => ends(&[b".npz"]),
            // `.tgz` is one suffix, so the logical name still contains it.
            Self::Tar {} => ends(&[b".tar", b".tgz"]),
            Self::Parquet {} => ends(&[b".parquet"]),
            // In many datasets, `.json` files contain metadata. JSON lines are therefore not detected from the suffix
            // `.json`.
            Self::Jsonl {} => ends(&[b".jsonl", b".ndjson"]),
            Self::Csv { .. } => ends(&[b".csv", b".tsv"]),
            // Hugging Face's `Dataset.filter` and `Dataset.map` store results beside the data, as `cache-*.arrow`.
            Self::Arrow {} if last_component(name).starts_with(b"cache-") => Some(false),
            Self::Arrow {} => ends(&[b".arrow", b".arrows", b".feather", b".ipc"]),
            Self::Megatron { .. } => ends(&[b".bin"]),
            Self::Images { .. } => ends(&[b".jpg", b".jpeg", b".png", b".webp", b".tif", b".tiff"]),
            // An unsupported codec is rejected, with its name, after the index is read.
            Self::Mds { .. } => ends(&[b".mds", b".mds.zstd", b".mds.br", b".mds.bz2", b".mds.snappy"]),
            Self::Hdf5 { .. } => ends(&[b".h5", b".hdf5", b".he5"]),
            Self::Fixed { .. } | Self::Tokens { .. } | Self::Files {} | Self::Zarr { .. } => None,
        }
    }

    /// TFRecords. The object names show the codec.
    pub const TFRECORD: Self = Self::TfRecord { compression: Codec::None };

    /// Delimited text with a header. The object names show the delimiter.
    pub const CSV: Self = Self::Csv { delimiter: None, header: true, columns: Vec::new() };

    /// Detects the format of a dataset from its object names. Returns `None` if they show no format. The formats are
    /// tried in a fixed order. A tar file beside images is probably an archive of these images. If images take more
    /// bytes than the tables or arrays beside them, the tables or arrays probably describe the images.
    pub fn of_names(manifest: &Manifest) -> Result<Option<Self>> {
        // Zarr is detected by its metadata objects, because its chunks can have any name.
        if zarr::is_zarr(manifest) {
            return Ok(Some(Self::Zarr { arrays: Vec::new(), metadata: None, patches: None }));
        }
        let (npy, images) = (Self::Npy { rows: false }, Self::Images { labels: None });
        let claimed = |format: &Self| -> u64 {
            let claimed = manifest.objects.iter().filter(|entry| format.claims(entry.logical_name()) == Some(true));
            // Add 1 per object, so that the name of an empty object counts, too.
            claimed.map(|entry| 1 + entry.size).sum()
        };
        let pictures = claimed(&images);
        for format in [Self::TFRECORD, Self::Tar {}, Self::Mds { index: None }] {
            if claimed(&format) > 0 {
                return Ok(Some(format));
            }
        }
        if is_streaming(manifest) {
            return Ok(Some(Self::Mds { index: None }));
        }
        for format in [npy, Self::Npz {}, Self::Parquet {}, Self::Arrow {}, Self::Jsonl {}, Self::CSV] {
            if claimed(&format) > pictures {
                return Ok(Some(format));
            }
        }
        if claimed(&Self::Hdf5 { datasets: Vec::new(), files: None, patches: None }) > pictures {
            return Err(unnamed_hdf5(&manifest.url));
        }
        Ok((pictures > 0).then_some(images))
    }

    /// Key of the object that contains the rest of the format's metadata (see [`FormatSpec::resolved`]). `None` if no
    /// metadata is missing.
    pub fn metadata_object(&self) -> Option<&'static str> {
        matches!(self, Self::Mds { index: None }).then_some(mds::INDEX)
    }

    /// Returns the format with the content of its metadata object ([`FormatSpec::metadata_object`]).
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

    /// Checks that a listing contains all objects that the format's own index lists.
    pub fn check_listing(&self, manifest: &Manifest) -> Result<()> {
        if matches!(self, Self::Arrow {}) {
            return arrow::check_listing(manifest);
        }
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

    /// Returns the blocks of chunked arrays. The sample order treats blocks as objects. Returns `None` for other
    /// formats, where the sample order uses the objects of the listing.
    pub fn ordered(&self, listing: &Manifest) -> Result<Option<ArrayBlocks>> {
        Ok(self.blocks(listing)?.map(|blocks| ArrayBlocks::of(&blocks, listing)))
    }

    /// Returns the blocks of a format of chunked arrays. They are empty until the metadata is read. Returns `None` for
    /// other formats.
    pub(super) fn blocks(&self, listing: &Manifest) -> Result<Option<Blocks>> {
        let blocks = |patches: &Option<PatchSpec>| patches.clone().map_or_else(Blocks::default, Blocks::of_patches);
        Ok(match self {
            Self::Zarr { arrays, metadata, patches } => Some(match metadata {
                Some(metadata) => zarr::blocks(blocks(patches), arrays, metadata, listing)?,
                None => Blocks::default(),
            }),
            Self::Hdf5 { datasets, files, patches } => Some(match files {
                Some(files) => hdf5::blocks(blocks(patches), datasets, files, listing)?,
                None => Blocks::default(),
            }),
            _ => None,
        })
    }

    /// True for an object that contains the format's own index or metadata. Such an object contains no records, but is
    /// not counted as ignored.
    pub(super) fn is_index(&self, key: &Key) -> bool {
        match self {
            Self::Mds { .. } => key.as_bytes() == mds::INDEX.as_bytes(),
            Self::Arrow {} => arrow::METADATA.contains(&last_component(key.as_bytes())),
            _ => false,
        }
    }

    /// Keeps only the objects that contain records. If no object name shows this format, keeps all objects.
    pub fn retain(&self, manifest: &mut Manifest) {
        if let Self::Mds { index: Some(index) } = self {
            // Keep only the objects that the index lists.
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

/// Blocks of arrays, with only the data that the sample order needs.
#[derive(Debug, Clone)]
pub struct ArrayBlocks {
    /// Units that the sample order treats as objects.
    pub manifest: Manifest,
    /// Only for patches: maximum number of blocks in a default shuffle window.
    pub max_window: Option<u64>,
    /// Only for patches: stored size, in bytes, of all chunks that contain a part of a patch.
    pub needed_bytes: Option<u64>,
}

impl ArrayBlocks {
    pub(super) fn of(blocks: &Blocks, listing: &Manifest) -> Self {
        let needed_bytes = blocks.patches.as_ref().map(|_| blocks.needed_bytes);
        Self { manifest: blocks.manifest(listing), max_window: blocks.max_window(), needed_bytes }
    }
}

/// Returns an error if the content of a text format is compressed, for example by an unsupported codec.
fn refuse_compressed(content: &[u8], place: &str) -> Result<()> {
    // A text can begin with the letters of a magic number (for example, `BZh`).
    let is_text = !std::str::from_utf8(&content[..content.len().min(magic::HEAD_LEN)])
        .is_err_and(|error| error.error_len().is_some());
    match magic::describe(content) {
        Some(kind) if !is_text && kind.ends_with("-compressed data") => {
            Err(Error::Unsupported { what: format!("{kind} ({place})"), by: "text formats".to_owned() })
        }
        _ => Ok(()),
    }
}

/// Error for HDF5 files if the user did not name the HDF5 datasets to read.
fn unnamed_hdf5(place: &str) -> Error {
    Error::config("format", format!("{place} contains HDF5 files; name the dataset: penstock.formats.hdf5(\"/name\")"))
}

/// True if the dataset has one of MosaicML Streaming's other shard formats (JSON, CSV, TSV, XSV). Such a dataset has an
/// `index.json`, like MDS, and a file of offsets beside each shard.
fn is_streaming(manifest: &Manifest) -> bool {
    let has = |ends: &[u8]| manifest.objects.iter().any(|entry| entry.key.as_bytes().ends_with(ends));
    has(mds::INDEX.as_bytes()) && [&b".json.meta"[..], b".csv.meta", b".tsv.meta", b".xsv.meta"].into_iter().any(has)
}

fn is_none(codec: &Codec) -> bool {
    *codec == Codec::None
}

/// Identity of the record being read, for error messages and derived names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordId<'a> {
    /// URL of the object.
    pub place: &'a str,
    /// Index of the object in the dataset.
    pub object: u64,
    /// Index of the record in the object.
    pub record: u64,
    /// Offset of the record in the object's decompressed bytes.
    pub offset: u64,
    /// Memory reservation for a value that is being decompressed.
    pub memory: &'a PartHold<'a>,
}

/// A record whose values are read on request.
pub(crate) trait Record {
    /// Reads the value with this name. Returns `None` if the record does not have it, and `Corrupt` if it cannot be
    /// read.
    fn part(&self, name: &str) -> Result<Option<Value<'_>>>;
    /// Names of the record's values. Empty if the record cannot be read.
    fn names(&self) -> Vec<String>;
    /// Returns `Corrupt` if the record cannot be read.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// True if other records of the dataset may have values that this record lacks. Missing lists then count as empty.
    fn may_lack_parts(&self) -> bool {
        false
    }
    /// True if a field with a default may use the default for a value that this record lacks.
    fn takes_defaults(&self) -> bool {
        self.may_lack_parts()
    }
}

/// Callback that receives a record.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&dyn Record) -> Result<()>;

/// Result of reading the record count from the end of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrailerCount {
    /// Number of records.
    Count(u64),
    /// The count cannot be found in the given bytes. States how many of the object's last bytes are needed.
    Wants(u64),
}

/// Result of reading the start of a group of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextGroup {
    /// Number of rows of the group, and position of the next group.
    Rows(u64, u64),
    /// The table ends at this position.
    End,
    /// More bytes are needed, from this position on.
    Wants(u64),
}

/// Callback that receives a record of a table, and its index among the requested records.
pub(crate) type EachRow<'a> = &'a mut dyn FnMut(usize, Result<&dyn Record>);

/// An object in memory whose records are not stored contiguously.
pub(crate) trait Table {
    /// Number of records in the table.
    fn records(&self) -> u64;

    /// Reads `records` (ascending) and passes each record to the callback. `parts` lists the values that the callback
    /// will request. Each value is a list of alternative names; the first name that exists is used. The result for a
    /// record depends only on the object, not on the other requested records. Decodes at most `limit` bytes at a time.
    fn each(&self, records: &[u64], parts: &[&[String]], limit: u64, each: EachRow<'_>);

    /// Type of a column whose numbers are times, for example `timestamp[us, UTC]`. `None` for other columns.
    fn time(&self, _name: &str) -> Option<&str> {
        None
    }
}

/// Rows of equal size that follow a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadRows {
    /// Size of the header in bytes.
    pub head: u64,
    /// Size of a row in bytes.
    pub row: u64,
    /// Number of rows.
    pub count: u64,
}

impl HeadRows {
    /// Position of a row; `None` if the row does not exist.
    pub fn span(&self, row: u64) -> Option<Span> {
        (row < self.count).then(|| Span { offset: self.head + row * self.row, len: self.row, crc: 0 })
    }
}

/// Framing of a format: finds the records in an object's bytes. An object contains contiguous records, or is a table.
pub(crate) trait Framing: Send + Sync + fmt::Debug {
    /// Appends the positions of an object's records to `spans`. If the method returns an error, the positions that it
    /// appended before the error are valid.
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()>;

    /// Like [`Framing::spans`], but for a part of an object. The part begins at byte `start`, where a record begins.
    /// Positions are relative to `start`.
    fn spans_from(&self, _start: u64, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        self.spans(content, place, spans)
    }

    /// Returns an incremental reader of an object's decompressed bytes, or `None` if the format has no frames. `_first`
    /// are the object's first bytes. Returns an error if these bytes are not of this format.
    fn frames(&self, _first: &[u8], _place: &str) -> Option<Result<FrameStream>> {
        None
    }

    /// Number of records in an object of `_bytes` bytes. `None` if the number does not follow from the size.
    fn count_of_size(&self, _bytes: u64, _place: &str) -> Option<Result<u64>> {
        None
    }

    /// Number of records in an object, if the format's own index contains the number.
    fn count_of_object(&self, _object: u64) -> Option<u64> {
        None
    }

    /// Number of bytes at the start of an object that contain the object's record count. `None` if the start does not
    /// contain the count.
    fn head_for_count(&self) -> Option<u64> {
        None
    }

    /// Computes the positions of the records of an object of `size` bytes from the object's first bytes.
    fn rows_of_head(&self, _head: &[u8], _size: u64, place: &str) -> Result<HeadRows> {
        Err(Error::bug(format!("the start of {place} does not contain its row count")))
    }

    /// Position of a record. `None` if the position does not follow from the record's index.
    fn span_of(&self, _record: u64) -> Option<Span> {
        None
    }

    /// Checksum of a record for a record index. The default is the CRC-32C of the record's bytes.
    fn crc(&self, bytes: &[u8]) -> u32 {
        penstock_codec::checksum::crc32c(bytes)
    }

    /// True if records contain checksums, which `read` verifies.
    fn checks_itself(&self) -> bool {
        false
    }

    /// Reads a record and passes it to `each`. `bytes` are the record's bytes. `head` are the object's bytes before its
    /// first record.
    fn read(&self, bytes: &[u8], head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()>;

    /// True if an object of 0 bytes is one record.
    fn may_be_empty(&self) -> bool {
        false
    }

    /// Returns the bytes of the whole record, which `Kind::Record` delivers, from the bytes of its span. Returns `None`
    /// if a record consists of separate values, such as the members of a tar.
    fn whole<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        Some(bytes)
    }

    /// True if the values of a record are decompressed one by one. Their memory is reserved through
    /// [`RecordId::memory`].
    fn inflates_parts(&self) -> bool {
        false
    }

    /// True if reading a record requires the object's bytes before the first record.
    fn needs_head(&self) -> bool {
        false
    }

    /// True if objects are tables. A table is always read completely, and has no record positions.
    fn is_table(&self) -> bool {
        false
    }

    /// Parses the decompressed bytes of an object as a table.
    fn table(&self, _content: Bytes, place: &str) -> Result<Box<dyn Table>> {
        Err(Error::bug(format!("{place} is not a table")))
    }

    /// Reads the record count of a table of `size` bytes from the table's last bytes.
    fn count_of_end(&self, _end: &[u8], _size: u64, place: &str) -> Result<TrailerCount> {
        Err(Error::bug(format!("the end of {place} does not contain its row count")))
    }

    /// Names of the values in the records of an object. `None` if the names are not known without the object's content.
    fn columns_of_object(&self, _object: u64) -> Option<Vec<String>> {
        None
    }

    /// Reads the column names of a table of `size` bytes from the table's last bytes, which contain the record count.
    /// Returns `None` if these bytes do not contain the names.
    fn columns_of_end(&self, _end: &[u8], _size: u64, _place: &str) -> Result<Option<Vec<String>>> {
        Ok(None)
    }

    /// Returns the number of rows in a group of a table of `size` bytes, and the position of the next group. `at` is
    /// the position of the group, and `bytes` are the table's bytes from that position on. Returns `None` for a table
    /// whose end contains the count.
    fn next_group(&self, _bytes: &[u8], _at: u64, _size: u64, _place: &str) -> Option<Result<NextGroup>> {
        None
    }

    /// The fields of every record, if the format itself determines the fields.
    fn declares(&self) -> Option<Vec<super::field::Field>> {
        None
    }

    /// Kind of the default field for a value. If it is `None`, the kind is derived from the value's content.
    fn proposes(&self, _name: &str, _part: &Value<'_>) -> Option<super::field::Kind> {
        None
    }
}

/// Creates the framing of the format `spec` for these objects.
pub(crate) fn framing(spec: &FormatSpec, manifest: &Manifest) -> Result<Box<dyn Framing>> {
    Ok(match spec {
        FormatSpec::TfRecord { .. } => Box::new(tfrecord::TfRecord),
        FormatSpec::Fixed { header_bytes, columns } => Box::new(fixed::Fixed::new(*header_bytes, columns)?),
        FormatSpec::Tokens { header_bytes, dtype, length, stride, eos } => {
            Box::new(fixed::Tokens::new(*header_bytes, dtype, *length, *stride, *eos)?)
        }
        FormatSpec::Megatron { dtype, .. } => {
            // While the dataset is being opened, the type is not known yet.
            Box::new(megatron::Megatron { dtype: dtype.as_deref().unwrap_or("uint16").parse()? })
        }
        FormatSpec::Jsonl {} => Box::new(jsonl::Jsonl),
        FormatSpec::Csv { delimiter, header, columns } => {
            Box::new(csv::Csv::new(delimiter.as_deref(), *header, columns, manifest)?)
        }
        FormatSpec::Arrow {} => Box::new(arrow::Arrow),
        FormatSpec::Npy { rows } => Box::new(npy::Npy { rows: *rows }),
        FormatSpec::Npz {} => Box::new(npy::Npz),
        FormatSpec::Tar {} => Box::new(tar::Tar),
        FormatSpec::Mds { index } => Box::new(mds::Mds::new(index.as_deref().unwrap_or_default(), manifest)?),
        FormatSpec::Parquet {} => Box::new(parquet::Parquet),
        FormatSpec::Images { labels } => Box::new(files::Files::new(files::IMAGE, manifest, labels.as_ref())?),
        FormatSpec::Files {} => Box::new(files::Files::new(files::RECORD, manifest, None)?),
        FormatSpec::Zarr { .. } | FormatSpec::Hdf5 { .. } => {
            return Err(Error::bug("framing was requested for a format of chunked arrays, which uses blocks"));
        }
    })
}
