// SPDX-License-Identifier: Apache-2.0
//! tar parser: finds the regular files of an archive by reading its headers, and groups them into samples.
//!
//! Supports ustar, pax (`path` and `size`, in member and global headers), GNU long names and base-256 numbers. Copies
//! only those names that are split over two header fields. Every member takes at least one input block, so the input
//! size limits the output even for a hostile archive.
//!
//! Members that cannot hold a sample are skipped: folders, hard and symbolic links, devices, FIFOs, volume labels.
//! Members that would be read wrongly are rejected: sparse files, whose bytes are not contiguous, and continued files
//! of multi-volume archives. Bytes after the first block of zeros are never read. An archive that ends between two
//! members, without a block of zeros, counts as complete, as in GNU tar and Python.

use std::borrow::Cow;

use penstock_types::{Error, Result, with_separators};

use crate::magic;
pub use crate::tar_header::sniff;
use crate::tar_header::{self as header, BLOCK, Kind, Pax};

/// A regular file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member<'a> {
    /// Path, as stored in the archive.
    pub name: Cow<'a, [u8]>,
    /// Offset of the file's first header, which may be an extension header.
    pub header_offset: u64,
    /// Offset of the file's content.
    pub offset: u64,
    /// Size of the file's content in bytes.
    pub size: u64,
}

impl Member<'_> {
    /// End offset of the file's last block.
    pub fn end(&self) -> u64 {
        self.offset + self.size.div_ceil(BLOCK as u64) * BLOCK as u64
    }
}

/// Iterates over the regular files in the decompressed bytes of one archive, in order. Reads only headers. Ends after
/// the first error.
#[derive(Debug, Clone)]
pub struct Members<'a> {
    bytes: &'a [u8],
    at: usize,
    base: u64,
    count: u64,
    skipped: u64,
    global: Pax<'a>,
    place: &'a str,
    done: bool,
}

impl<'a> Members<'a> {
    /// Creates an iterator over the files in `bytes`; `place` names the archive in messages.
    pub fn new(bytes: &'a [u8], place: &'a str) -> Self {
        Self::at(bytes, 0, place)
    }

    /// Creates an iterator over the files in a piece of an archive; the piece begins with a header at offset `base` of
    /// the archive. Returned and printed offsets refer to the whole archive.
    pub fn at(bytes: &'a [u8], base: u64, place: &'a str) -> Self {
        Self { bytes, at: 0, base, count: 0, skipped: 0, global: Pax::default(), place, done: false }
    }

    /// Number of members skipped so far: folders, links, devices and others.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn corrupt(&self, at: usize, problem: &str) -> Error {
        let (count, at) = (self.count + self.skipped, self.base + at as u64);
        let problem = match at {
            0 => self.not_a_tar(&format!(": its first header {problem}")),
            _ => format!("is damaged: the header of member {count} at byte {} {problem}", with_separators(at)),
        };
        Error::corrupt(self.place, problem)
    }

    /// Returns the text of an error for bytes that are not a tar archive. The text names the format that the first
    /// bytes show, or ends with `otherwise` if the format is unknown.
    fn not_a_tar(&self, otherwise: &str) -> String {
        match magic::describe(self.bytes) {
            Some(kind) if kind != magic::TAR => format!("is not a tar archive: it looks like {kind}"),
            _ => format!("is not a tar archive{otherwise}"),
        }
    }

    /// Returns the `size` bytes of content at `from`, and the end offset of the blocks that hold the content.
    fn content(&self, from: usize, size: u64) -> Result<(&'a [u8], usize)> {
        let rest = &self.bytes[from..];
        let whole = size.checked_next_multiple_of(BLOCK as u64).and_then(|whole| usize::try_from(whole).ok());
        match whole {
            Some(whole) if whole <= rest.len() => Ok((&rest[..size as usize], from + whole)),
            _ => Err(Error::corrupt(
                self.place,
                format!(
                    "ends inside member {} (byte {}: want {} bytes in whole blocks, have {})",
                    self.count + self.skipped,
                    with_separators(self.base + from as u64),
                    with_separators(size),
                    with_separators(rest.len() as u64)
                ),
            )),
        }
    }

    fn read(&mut self) -> Result<Option<Member<'a>>> {
        let (mut first, mut pax, mut long_name) = (None, Pax::default(), None);
        loop {
            let at = self.at;
            let rest = &self.bytes[at..];
            if rest.is_empty() && first.is_none() {
                return Ok(None);
            }
            let Some(block) = rest.first_chunk::<BLOCK>() else {
                let (have, at) = (with_separators(rest.len() as u64), with_separators(self.base + at as u64));
                let problem = match (self.at, self.base) {
                    (0, 0) => {
                        self.not_a_tar(&format!(", or ends inside its first header (want 512 bytes, have {have})"))
                    }
                    _ => format!("ends inside a header (byte {at}: want 512 bytes, have {have})"),
                };
                return Err(Error::corrupt(self.place, problem));
            };
            if block.iter().all(|&byte| byte == 0) {
                if first.is_some() {
                    return Err(self.corrupt(at, "is blank, but an extension must be followed by its member"));
                }
                return Ok(None);
            }
            let fields = header::Fields::parse(block).map_err(|problem| self.corrupt(at, problem))?;
            let body = at + BLOCK;
            let header_offset = *first.get_or_insert(at);
            match fields.kind {
                Kind::Pax | Kind::GlobalPax | Kind::LongName | Kind::LongLink => {
                    if fields.size > header::MAX_EXTENSION {
                        return Err(self.corrupt(at, "describes an extension of more than 1 MiB"));
                    }
                    let (content, end) = self.content(body, fields.size)?;
                    let problem = |problem| self.corrupt(at, problem);
                    match fields.kind {
                        Kind::Pax => pax.merge(content).map_err(problem)?,
                        Kind::GlobalPax => {
                            let mut global = self.global.clone();
                            global.merge(content).map_err(problem)?;
                            self.global = global;
                        }
                        Kind::LongName => long_name = Some(header::until_nul(content)),
                        _ => {}
                    }
                    self.at = end;
                    // A global header does not belong to the next member, so it does not count as that member's first
                    // header.
                    if fields.kind == Kind::GlobalPax && header_offset == at {
                        first = None;
                    }
                    continue;
                }
                _ => {}
            }
            let file = match fields.kind {
                Kind::File => true,
                Kind::Other => false,
                Kind::NoContent => {
                    self.at = body;
                    (first, pax, long_name) = (None, Pax::default(), None);
                    self.skipped += 1;
                    continue;
                }
                Kind::Sparse => return Err(self.refused(at, "a sparse file")),
                Kind::Continued => return Err(self.refused(at, "the continuation of a file from another volume")),
                Kind::Pax | Kind::GlobalPax | Kind::LongName | Kind::LongLink => continue,
            };
            if pax.sparse || self.global.sparse {
                return Err(self.refused(at, "a sparse file"));
            }
            let size = pax.size.or(self.global.size).unwrap_or(fields.size);
            let (_, end) = self.content(body, size)?;
            let name = match (pax.path.or(long_name).or(self.global.path), fields.prefix) {
                (Some(name), _) => Cow::Borrowed(name),
                (None, []) => Cow::Borrowed(fields.name),
                (None, prefix) => Cow::Owned([prefix, b"/", fields.name].concat()),
            };
            self.at = end;
            // Before ustar, a folder was stored as a file whose name ends in a slash.
            if !file || name.ends_with(b"/") {
                (first, pax, long_name) = (None, Pax::default(), None);
                self.skipped += 1;
                continue;
            }
            self.count += 1;
            return Ok(Some(Member {
                name,
                header_offset: self.base + header_offset as u64,
                offset: self.base + body as u64,
                size,
            }));
        }
    }

    fn refused(&self, at: usize, what: &str) -> Error {
        let at = with_separators(self.base + at as u64);
        Error::Unsupported { what: format!("{what} in {} (byte {at})", self.place), by: "the tar reader".to_owned() }
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<Member<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let member = self.read().transpose();
        self.done = !matches!(member, Some(Ok(_)));
        member
    }
}

impl std::iter::FusedIterator for Members<'_> {}

/// A member that is part of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleMember {
    /// Extension, in lower case: the text after the first dot of the base name, such as `jpg` or `seg.png`.
    pub ext: String,
    /// Offset of the member's content.
    pub offset: u64,
    /// Size of the member's content in bytes.
    pub size: u64,
}

/// A sample: consecutive members with the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Key: the path up to the first dot of the base name.
    pub key: Cow<'a, [u8]>,
    /// Offset of the sample's first header.
    pub offset: u64,
    /// Number of bytes from `offset` to the end of the last member's blocks.
    pub len: u64,
    /// Members of the sample, in order.
    pub parts: Vec<SampleMember>,
}

impl Sample<'_> {
    /// Returns the member with this extension.
    pub fn part(&self, ext: &str) -> Option<&SampleMember> {
        self.parts.iter().find(|part| part.ext == ext)
    }
}

/// Splits a path into key and extension as WebDataset does: the extension follows the first dot of the base name.
/// Returns `None` if the member is not part of a sample: its base name has no dot, begins with a dot, or is a
/// `__meta__` name.
pub fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let base = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].iter().position(|&byte| byte == b'.')?;
    let first = name.split(|&byte| byte == b'/').next().unwrap_or_default();
    let meta = first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__");
    (dot > base && !meta).then(|| (&name[..dot], &name[dot + 1..]))
}

/// Key of a member, the member, the offset of its first header, and the end offset of its blocks.
type Keyed<'a> = (Cow<'a, [u8]>, SampleMember, u64, u64);

/// Iterates over the samples of an archive, grouped as by WebDataset. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Samples<'a> {
    members: Members<'a>,
    next: Option<Keyed<'a>>,
    done: bool,
}

impl<'a> Samples<'a> {
    /// Creates an iterator over the samples in `bytes`; `place` names the archive in messages.
    pub fn new(bytes: &'a [u8], place: &'a str) -> Self {
        Self::of(Members::new(bytes, place))
    }

    /// Creates an iterator that groups these members into samples.
    pub fn of(members: Members<'a>) -> Self {
        Self { members, next: None, done: false }
    }

    /// Returns the next member that is part of a sample.
    fn part(&mut self) -> Result<Option<Keyed<'a>>> {
        if let Some(part) = self.next.take() {
            return Ok(Some(part));
        }
        for member in self.members.by_ref() {
            let member = member?;
            let Some((key, ext)) = split_name(&member.name) else { continue };
            let (key_len, ext) = (key.len(), String::from_utf8_lossy(ext).to_lowercase());
            let (part, end) = (SampleMember { ext, offset: member.offset, size: member.size }, member.end());
            let key = match member.name {
                Cow::Borrowed(name) => Cow::Borrowed(&name[..key_len]),
                Cow::Owned(mut name) => {
                    name.truncate(key_len);
                    Cow::Owned(name)
                }
            };
            return Ok(Some((key, part, member.header_offset, end)));
        }
        Ok(None)
    }

    fn read(&mut self) -> Result<Option<Sample<'a>>> {
        let Some((key, first, offset, mut end)) = self.part()? else { return Ok(None) };
        let mut parts = vec![first];
        while let Some((other, part, start, its_end)) = self.part()? {
            if other != key {
                self.next = Some((other, part, start, its_end));
                break;
            }
            // A sample usually has few parts. The limit is needed because the comparison below takes quadratic time.
            if parts.len() == MAX_PARTS {
                return Err(self.problem(&key, start, format!("has more than {MAX_PARTS} members")));
            }
            if parts.iter().any(|known| known.ext == part.ext) {
                return Err(self.problem(&key, start, format!("has two `.{}` members", part.ext.escape_default())));
            }
            parts.push(part);
            end = its_end;
        }
        Ok(Some(Sample { key, offset, len: end - offset, parts }))
    }

    fn problem(&self, key: &[u8], at: u64, problem: String) -> Error {
        let text =
            format!("is not a WebDataset: sample `{}` {problem} (byte {})", key.escape_ascii(), with_separators(at));
        Error::corrupt(self.members.place, text)
    }
}

/// Maximum number of members in one sample.
const MAX_PARTS: usize = 1024;

impl<'a> Iterator for Samples<'a> {
    type Item = Result<Sample<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let sample = self.read().transpose();
        self.done = !matches!(sample, Some(Ok(_)));
        sample
    }
}

impl std::iter::FusedIterator for Samples<'_> {}
