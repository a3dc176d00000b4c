// SPDX-License-Identifier: Apache-2.0
//! Reads and writes manifest files in JSON or Parquet; a reader detects the format from the content. Writes the entries
//! one by one, and replaces a file atomically.

use std::borrow::Borrow;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use penstock_store::owned::{self, OwnedFile, Proof, Replace};
use penstock_types::{Error, Result};
use serde::Deserialize;

use super::{Entry, Head, MANIFEST_VERSION, Manifest, finished, other_version, pack_keys, parquet};

/// Maximum manifest size. A larger file is rejected before it is read. A JSON manifest of a billion objects exceeds
/// this limit.
const MAX_DOCUMENT_BYTES: u64 = 16 << 30;

/// File format of a manifest. A reader accepts both formats, for any file name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManifestFormat {
    /// JSON, one object per line: works with diff and `head`.
    Json,
    /// Parquet, one row per object: small and fast to read, for millions of objects.
    Parquet,
}

impl ManifestFormat {
    /// Minimum number of objects for which Parquet is the default. A JSON manifest of more objects exceeds 30 MB and
    /// takes most of a second to read.
    pub const PARQUET_FROM: usize = 100_000;

    /// Name of the format, which is also its file suffix.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Parquet => "parquet",
        }
    }

    /// Default format for this number of objects.
    pub fn for_objects(objects: usize) -> Self {
        if objects < Self::PARQUET_FROM { Self::Json } else { Self::Parquet }
    }

    /// Format that the suffix of the file name states. Without a known suffix, the default for the number of objects.
    pub fn of_file(path: &Path, objects: usize) -> Self {
        match path.extension().map(std::ffi::OsStr::to_ascii_lowercase) {
            Some(extension) if extension == "json" => Self::Json,
            Some(extension) if extension == "parquet" => Self::Parquet,
            _ => Self::for_objects(objects),
        }
    }
}

impl FromStr for ManifestFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "json" => Ok(Self::Json),
            "parquet" => Ok(Self::Parquet),
            _ => Err(Error::config("--format", format!("`{text}` is neither json nor parquet"))),
        }
    }
}

/// Writes a manifest in the given format. The entries must be in manifest order.
pub fn write<E: Borrow<Entry>>(
    file: &mut File,
    format: ManifestFormat,
    head: &Head<'_>,
    entries: impl Iterator<Item = Result<E>>,
    place: &str,
) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    match format {
        ManifestFormat::Json => write_json(&mut out, head, entries, place)?,
        ManifestFormat::Parquet => parquet::write(&mut out, head, entries, place)?,
    }
    out.flush().map_err(|error| Error::from_io(place, &error))
}

pub(super) fn write_json<E: Borrow<Entry>>(
    out: &mut impl Write,
    head: &Head<'_>,
    entries: impl Iterator<Item = Result<E>>,
    place: &str,
) -> Result<()> {
    let bad = |error: serde_json::Error| match error.io_error_kind() {
        Some(kind) => Error::from_io(place, &kind.into()),
        None => Error::bug(format!("a manifest cannot be serialised: {error}")),
    };
    let io = |error: std::io::Error| Error::from_io(place, &error);
    write!(out, "{{\"penstock_manifest\":{MANIFEST_VERSION},\"url\":").map_err(io)?;
    serde_json::to_writer(&mut *out, head.url).map_err(bad)?;
    if let Some(source) = head.source {
        out.write_all(b",\"source\":").map_err(io)?;
        serde_json::to_writer(&mut *out, source).map_err(bad)?;
    }
    out.write_all(b",\"created_s\":").map_err(io)?;
    serde_json::to_writer(&mut *out, &head.created_s).map_err(bad)?;
    if head.failed > 0 {
        write!(out, ",\"failed\":{}", head.failed).map_err(io)?;
    }
    out.write_all(b",\"objects\":[").map_err(io)?;
    for (at, entry) in entries.enumerate() {
        out.write_all(if at == 0 { b"\n" } else { b",\n" }).map_err(io)?;
        serde_json::to_writer(&mut *out, entry?.borrow()).map_err(bad)?;
    }
    out.write_all(b"\n]}\n").map_err(io)
}

impl Manifest {
    /// Header of this manifest, which is written before the entries.
    pub fn head(&self) -> Head<'_> {
        Head { url: &self.url, source: self.source.as_deref(), created_s: self.created_s, failed: self.failed }
    }

    /// Returns the manifest as JSON, one object per line.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(256 + 192 * self.objects.len());
        write_json(&mut out, &self.head(), self.objects.iter().map(Ok), &self.url)?;
        Ok(out)
    }

    /// Returns the manifest as Parquet.
    pub fn to_parquet(&self) -> Result<Vec<u8>> {
        let mut out = std::io::Cursor::new(Vec::new());
        parquet::write(&mut out, &self.head(), self.objects.iter().map(Ok), &self.url)?;
        Ok(out.into_inner())
    }

    /// Writes the manifest to a temporary file and renames the file, so readers see either the old or the new manifest.
    /// The suffix of the file name determines the format. Without a known suffix, the number of objects determines it.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.save_as(path, ManifestFormat::of_file(path, self.objects.len()))
    }

    /// Like [`Manifest::save`], but always in the given format.
    pub fn save_as(&self, path: &Path, format: ManifestFormat) -> Result<()> {
        let place = path.display().to_string();
        write_atomically(path, |file| write(file, format, &self.head(), self.objects.iter().map(Ok), &place))
    }

    /// Reads a manifest in either format from a local file.
    pub fn load(path: &Path) -> Result<Self> {
        let place = path.display().to_string();
        let file = File::open(path).map_err(|error| Error::from_io(&place, &error))?;
        Self::read(file, &place)
    }

    /// Reads a manifest in either format from an open file. `place` names the file in errors.
    pub fn read(mut file: File, place: &str) -> Result<Self> {
        let io = |error: std::io::Error| Error::from_io(place, &error);
        let size = file.metadata().map_err(io)?.len();
        if size > MAX_DOCUMENT_BYTES {
            return Err(Error::corrupt(
                place,
                format!("has {size} bytes (a manifest has at most {MAX_DOCUMENT_BYTES})"),
            ));
        }
        let mut magic = [0; 4];
        let is_parquet = size >= magic.len() as u64 && {
            file.read_exact(&mut magic).map_err(io)?;
            file.seek(SeekFrom::Start(0)).map_err(io)?;
            magic == *parquet::MAGIC
        };
        if is_parquet {
            return parquet::read(file, place);
        }
        let mut bytes = Vec::with_capacity(size as usize);
        file.take(MAX_DOCUMENT_BYTES).read_to_end(&mut bytes).map_err(io)?;
        Self::from_json(&bytes, place)
    }

    /// Reads a manifest in either format from memory. `place` names the manifest in errors.
    pub fn from_bytes(bytes: &[u8], place: &str) -> Result<Self> {
        match bytes.starts_with(parquet::MAGIC) {
            true => parquet::read_bytes(bytes, place),
            false => Self::from_json(bytes, place),
        }
    }

    /// Reads a JSON manifest. `place` names the manifest in errors.
    pub fn from_json(bytes: &[u8], place: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            penstock_manifest: Option<u32>,
        }
        let bad = |error: serde_json::Error| Error::corrupt(place, format!("is not a Penstock manifest: {error}"));
        match serde_json::from_slice::<Versioned>(bytes).map_err(bad)?.penstock_manifest {
            Some(1..=MANIFEST_VERSION) => {}
            Some(version) => return Err(other_version(version, place)),
            None => return Err(Error::corrupt(place, "is not a Penstock manifest: `penstock_manifest` is missing")),
        }
        let mut manifest: Self = serde_json::from_slice(bytes).map_err(bad)?;
        manifest.version = MANIFEST_VERSION;
        pack_keys(&mut manifest.objects);
        finished(manifest, place)
    }
}

/// Writes a file atomically: writes a temporary file, calls fsync, renames it, and calls fsync on the folder.
fn write_atomically(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let place = path.display().to_string();
    let io = |error: std::io::Error| Error::from_io(&place, &error);
    let (folder, _) = owned::parent_of(path).map_err(io)?;
    let name = path.file_name().ok_or_else(|| Error::config(&place, "must end in a file name"))?;
    let temporary = OwnedFile::create(&folder, ".penstock-manifest-").map_err(io)?;
    let write = || -> Result<()> {
        let mut file = temporary.file().try_clone().map_err(io)?;
        fill(&mut file)?;
        file.sync_all().map_err(io)?;
        let renamed = temporary.rename(&folder, name.as_bytes(), Replace::Existing(Proof::Named));
        renamed.and_then(|()| rustix::fs::fsync(&folder)).map_err(|errno| io(errno.into()))
    };
    write().inspect_err(|_| temporary.remove())
}
