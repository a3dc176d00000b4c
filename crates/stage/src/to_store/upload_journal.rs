// SPDX-License-Identifier: Apache-2.0
//! Journal of one multipart upload: the object's source and transform, the upload id, and the parts that the store
//! accepted.
//!
//! The file has a header line and one line per part. The mode of the file is 0600, because in some stores the upload id
//! grants write access. The file is not synced: if a power failure destroys lines, the parts on these lines are sent
//! again. A listed part is used only if the store still holds it. If an object differs from the header, the upload of
//! the object starts again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_store::owned::OwnedFile;
use penstock_store::{Part, UploadId};
use penstock_types::{Digest, Error, Result};
use serde::{Deserialize, Serialize};

use crate::dest_dir::DestDir;
use penstock_dataset::manifest::transform_text;

/// Maximum size of the file in bytes. Penstock does not write a larger file (50,000 parts of about 200 bytes).
const MAX_BYTES: u64 = 64 << 20;

/// Identity of an upload: source, transform and target of the object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub source: String,
    pub size: u64,
    pub version: Option<penstock_store::Version>,
    pub modified_ms: Option<i64>,
    pub target: String,
    /// Penstock 0.1 named this field `asked`.
    #[serde(alias = "asked", deserialize_with = "transform_text")]
    pub transform: Option<String>,
    pub part_bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Head {
        head: Head,
        id: UploadId,
    },
    Part(Part),
    /// Describes the complete object. Written after all parts have arrived.
    Whole {
        size: u64,
        digests: Vec<Digest>,
    },
}

/// An upload left by an earlier run.
#[derive(Debug)]
pub(crate) struct PreviousUpload {
    pub id: UploadId,
    /// Parts by number. If a part was sent twice, only the last line of the part counts.
    pub parts: BTreeMap<u32, Part>,
    pub whole: Option<(u64, Vec<Digest>)>,
}

/// Journal file of an upload. This process holds the lock on the file until the value is dropped.
#[derive(Debug)]
pub(crate) struct SentParts {
    pub file: Arc<OwnedFile>,
    place: String,
}

impl SentParts {
    /// Opens the file. Returns the upload that an earlier run left there, if this upload belongs to the same object.
    pub fn open(
        dest_dir: &DestDir,
        folder: &Arc<OwnedFd>,
        name: String,
        want: &Head,
    ) -> Result<(Self, Option<PreviousUpload>)> {
        let place = dest_dir.place(name.as_bytes());
        let io = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                Error::Busy { place: want.target.clone(), holder: "another penstock process is writing it".to_owned() }
            }
            _ => Error::from_io(&place, &error),
        };
        let owned = Arc::new(OwnedFile::lock(folder, &name).map_err(io)?);
        let mut file = owned.file();
        let _ = rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(0o600));
        let mut left: Option<PreviousUpload> = None;
        if file.metadata().map_err(io)?.len() <= MAX_BYTES {
            let lines = BufReader::new(file).lines().map_while(std::result::Result::ok);
            for line in lines.filter_map(|text| serde_json::from_str::<Line>(&text).ok()) {
                match (line, &mut left) {
                    (Line::Head { head, id }, left) => {
                        *left = (head == *want).then_some(PreviousUpload { id, parts: BTreeMap::new(), whole: None });
                    }
                    (Line::Part(part), Some(left)) => {
                        left.parts.insert(part.number, part);
                    }
                    (Line::Whole { size, digests }, Some(left)) => left.whole = Some((size, digests)),
                    (Line::Part(_) | Line::Whole { .. }, None) => {}
                }
            }
        }
        if left.is_some() {
            // End an incomplete last line, so that it does not merge with the next one.
            file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(b"\n")).map_err(io)?;
        }
        Ok((Self { file: owned, place }, left))
    }

    /// Empties the file and writes the header line of a new upload.
    pub fn begin(&mut self, head: &Head, id: &UploadId) -> Result<()> {
        let cleared = self.file.clear().and_then(|()| self.file.file().rewind());
        cleared.map_err(|error| Error::from_io(&self.place, &error))?;
        self.line(&Line::Head { head: head.clone(), id: id.clone() })
    }

    pub fn part(&mut self, part: &Part) -> Result<()> {
        self.line(&Line::Part(part.clone()))
    }

    pub fn whole(&mut self, size: u64, digests: &[Digest]) -> Result<()> {
        self.line(&Line::Whole { size, digests: digests.to_vec() })
    }

    fn line(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_vec(line).map_err(|error| Error::bug(error.to_string()))?;
        text.push(b'\n');
        self.write(&text)
    }

    fn write(&mut self, text: &[u8]) -> Result<()> {
        self.file.file().write_all(text).map_err(|error| Error::from_io(&self.place, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(size: u64) -> Head {
        Head {
            source: "s3://a/b".into(),
            size,
            version: None,
            modified_ms: None,
            target: "gs://c/d".into(),
            transform: None,
            part_bytes: 5,
        }
    }

    fn part(number: u32, tag: &str) -> Part {
        Part { number, offset: u64::from(number) * 5, size: 5, crc32c: 1, tag: tag.into() }
    }

    #[test]
    fn sent_parts_survive_a_kill_and_belong_to_one_object() {
        let inside = tempfile::tempdir().unwrap();
        let dest_dir = DestDir::open(inside.path()).unwrap();
        let folder = Arc::new(dest_dir.make_folder(b"p").unwrap());
        let open = |size| SentParts::open(&dest_dir, &folder, "x.up".into(), &head(size)).unwrap();
        {
            let (mut sent, left) = open(9);
            assert!(left.is_none());
            sent.begin(&head(9), &UploadId("id".into())).unwrap();
            sent.part(&part(1, "old")).unwrap();
            sent.part(&part(0, "a")).unwrap();
            sent.part(&part(1, "b")).unwrap();
            sent.write(b"{\"part\":{\"numb").unwrap(); // torn by a kill
        }
        {
            let (mut sent, left) = open(9);
            let left = left.unwrap();
            assert_eq!(
                (left.id.0.as_str(), left.parts.into_values().collect::<Vec<_>>()),
                ("id", vec![part(0, "a"), part(1, "b")])
            );
            sent.part(&part(2, "c")).unwrap();
        }
        assert_eq!(open(9).1.unwrap().parts.len(), 3);
        assert!(open(10).1.is_none());
    }

    #[test]
    fn sent_parts_of_the_first_version_belong_to_the_same_transform() {
        let json = br#"{"source":"s3://a/b","size":9,"version":null,"modified_ms":null,"target":"gs://c/d","asked":"inflate,gzip:6","part_bytes":5}"#;
        let transform = Some("decompress,gzip:6".to_owned());
        assert_eq!(serde_json::from_slice::<Head>(json).unwrap(), Head { transform, ..head(9) });
    }
}
