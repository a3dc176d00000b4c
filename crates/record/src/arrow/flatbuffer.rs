// SPDX-License-Identifier: Apache-2.0
//! Flatbuffers: reads tables from untrusted bytes. Every access is checked; a value outside the bytes is returned as
//! `None`.

/// A table in a flatbuffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Position of the table's list of fields.
    fields: usize,
    /// Size of the list of fields in bytes.
    len: usize,
}

fn fixed<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl<'a> Table<'a> {
    /// The root table.
    pub fn root(bytes: &'a [u8]) -> Option<Self> {
        Self::at(bytes, u32::from_le_bytes(fixed(bytes, 0)?) as usize)
    }

    fn at(bytes: &'a [u8], at: usize) -> Option<Self> {
        let back = i64::from(i32::from_le_bytes(fixed(bytes, at)?));
        let fields = usize::try_from(i64::try_from(at).ok()? - back).ok()?;
        let len = usize::from(u16::from_le_bytes(fixed(bytes, fields)?));
        Some(Self { bytes, at, fields, len })
    }

    /// Position of a field's value; `None` if the table lacks the field.
    fn field(&self, number: usize) -> Option<usize> {
        let at = 4 + 2 * number;
        if at + 2 > self.len {
            return None;
        }
        match u16::from_le_bytes(fixed(self.bytes, self.fields + at)?) {
            0 => None,
            offset => Some(self.at + usize::from(offset)),
        }
    }

    /// Position that a field refers to.
    fn target(&self, number: usize) -> Option<usize> {
        let at = self.field(number)?;
        at.checked_add(u32::from_le_bytes(fixed(self.bytes, at)?) as usize)
    }

    pub fn u8(&self, number: usize) -> u8 {
        self.field(number).and_then(|at| self.bytes.get(at)).copied().unwrap_or(0)
    }

    pub fn i16(&self, number: usize, default: i16) -> i16 {
        self.field(number).and_then(|at| fixed(self.bytes, at)).map_or(default, i16::from_le_bytes)
    }

    pub fn i32(&self, number: usize, default: i32) -> i32 {
        self.field(number).and_then(|at| fixed(self.bytes, at)).map_or(default, i32::from_le_bytes)
    }

    pub fn i64(&self, number: usize) -> i64 {
        self.field(number).and_then(|at| fixed(self.bytes, at)).map_or(0, i64::from_le_bytes)
    }

    pub fn table(&self, number: usize) -> Option<Self> {
        Self::at(self.bytes, self.target(number)?)
    }

    /// Bytes of a vector whose elements have `size` bytes; empty if the table lacks the vector.
    pub fn vector(&self, number: usize, size: usize) -> Option<&'a [u8]> {
        if self.field(number).is_none() {
            return Some(&[]);
        }
        let at = self.target(number)?;
        let len = (u32::from_le_bytes(fixed(self.bytes, at)?) as usize).checked_mul(size)?;
        self.bytes.get(at + 4..)?.get(..len)
    }

    pub fn text(&self, number: usize) -> Option<&'a str> {
        std::str::from_utf8(self.vector(number, 1)?).ok()
    }

    /// The tables of a vector.
    pub fn tables(&self, number: usize) -> Option<Vec<Self>> {
        let Some(start) = self.target(number) else { return Some(Vec::new()) };
        let offsets = self.vector(number, 4)?.as_chunks::<4>().0;
        let table = |(at, offset): (usize, &[u8; 4])| {
            let from = start.checked_add(4 + 4 * at)?;
            Self::at(self.bytes, from.checked_add(u32::from_le_bytes(*offset) as usize)?)
        };
        offsets.iter().enumerate().map(table).collect()
    }

    /// The structs of a vector, each with two integers.
    pub fn pairs(&self, number: usize) -> Option<Vec<(i64, i64)>> {
        let structs = self.vector(number, 16)?.as_chunks::<16>().0;
        let number = |pair: &[u8; 16], at: usize| fixed(pair, at).map(i64::from_le_bytes);
        structs.iter().map(|pair| number(pair, 0).zip(number(pair, 8))).collect()
    }
}
