// SPDX-License-Identifier: Apache-2.0
//! Parses a tar header block, with the pax and GNU extensions.

/// Description of a problem in a header, without its location.
pub(crate) type Problem = &'static str;

/// Block size of tar.
pub(crate) const BLOCK: usize = 512;
/// Maximum size of a pax header or a GNU long name. Valid headers are far smaller, because a path has at most 4,096
/// bytes (PATH_MAX).
pub(crate) const MAX_EXTENSION: u64 = 1 << 20;

/// Kind of the member that a header describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    /// Folders, links, devices: they have no content, whatever size the header states.
    NoContent,
    /// Other kinds, skipped with their content.
    Other,
    Sparse,
    Continued,
    Pax,
    GlobalPax,
    LongName,
    LongLink,
}

/// The header fields that this crate uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fields<'a> {
    pub(crate) name: &'a [u8],
    /// Prefix of the name in ustar headers; empty in other formats.
    pub(crate) prefix: &'a [u8],
    pub(crate) size: u64,
    pub(crate) kind: Kind,
}

impl<'a> Fields<'a> {
    pub(crate) fn parse(block: &'a [u8; BLOCK]) -> Result<Self, Problem> {
        let want = number(&block[148..156]).ok_or("has no checksum")?;
        // The checksum is computed with spaces in its own field. Some old writers summed signed bytes.
        let (mut unsigned, mut negative) = (0u64, 0u64);
        for (at, &byte) in block.iter().enumerate() {
            let byte = if (148..156).contains(&at) { b' ' } else { byte };
            unsigned += u64::from(byte);
            negative += u64::from(byte >> 7);
        }
        let signed = unsigned as i64 - 256 * negative as i64;
        if want != unsigned && i64::try_from(want) != Ok(signed) {
            return Err("does not match its checksum");
        }
        let kind = match block[156] {
            b'0' | 0 | b'7' => Kind::File,
            b'1'..=b'6' => Kind::NoContent,
            b'S' => Kind::Sparse,
            b'M' => Kind::Continued,
            b'x' | b'X' => Kind::Pax,
            b'g' => Kind::GlobalPax,
            b'L' => Kind::LongName,
            b'K' => Kind::LongLink,
            _ => Kind::Other,
        };
        let size = match kind {
            Kind::NoContent => 0,
            _ => number(&block[124..136]).ok_or("has a size that is not a number")?,
        };
        // In the bytes where POSIX stores the prefix, GNU's own format (`ustar  `) stores times.
        let posix = &block[257..263] == b"ustar\0";
        let prefix = if posix { until_nul(&block[345..500]) } else { &[] };
        Ok(Self { name: until_nul(&block[..100]), prefix, size, kind })
    }
}

pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len())]
}

/// Parses a number: octal digits padded with spaces, or base 256 if the first bit is set. Returns `None` if the field
/// is not a number, or the number is negative or exceeds 63 bits.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (&first, rest) = field.split_first()?;
        // The first byte is 0x80 for a positive number, 0xff for a negative one.
        return rest.iter().try_fold(u64::from(first & 0x7f), |value, &byte| {
            (value >> 55 == 0).then(|| value << 8 | u64::from(byte))
        });
    }
    let text = until_nul(field).trim_ascii();
    text.iter().try_fold(0u64, |value, &digit| match digit {
        b'0'..=b'7' if value >> 60 == 0 => Some(value << 3 | u64::from(digit - b'0')),
        _ => None,
    })
}

/// Pax records, either of one member or global.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pax<'a> {
    pub(crate) path: Option<&'a [u8]>,
    pub(crate) size: Option<u64>,
    pub(crate) sparse: bool,
}

impl<'a> Pax<'a> {
    /// Adds the records of a pax header. Each record is `LENGTH KEY=VALUE\n`, where LENGTH counts the whole record. An
    /// empty value removes the key.
    pub(crate) fn merge(&mut self, content: &'a [u8]) -> Result<(), Problem> {
        let mut rest = content;
        // The standard does not allow padding after the last record, but some writers add zeros.
        while rest.first().is_some_and(|&byte| byte != 0) {
            let space =
                rest.iter().take(20).position(|&byte| byte == b' ').ok_or("has a pax record without a length")?;
            let len = decimal(&rest[..space])
                .and_then(|len| usize::try_from(len).ok())
                .ok_or("has a pax record without a length")?;
            let record = rest.get(space + 1..len).ok_or("has a pax record longer than its header")?;
            let record = record.strip_suffix(b"\n").ok_or("has a pax record that does not end in a line feed")?;
            let equals = record.iter().position(|&byte| byte == b'=').ok_or("has a pax record without `=`")?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.path = (!value.is_empty()).then_some(value),
                b"size" if value.is_empty() => self.size = None,
                b"size" => self.size = Some(decimal(value).ok_or("has a pax size that is not a number")?),
                key if key.starts_with(b"GNU.sparse.") => self.sparse = true,
                _ => {}
            }
            rest = &rest[len..];
        }
        Ok(())
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// True if `head`, the first 512 decompressed bytes of an object, is a tar header.
pub fn sniff(head: &[u8]) -> bool {
    head.first_chunk::<BLOCK>().is_some_and(|block| Fields::parse(block).is_ok())
}
