// SPDX-License-Identifier: Apache-2.0
//! Parser for the protobuf wire format: reads tags, varints and length-delimited fields in place, and skips unknown
//! fields. Copies no bytes and does not recurse; a message is a slice.

/// Description of a problem in a message, without its location.
pub(crate) type Problem = &'static str;

/// Maximum nesting depth of groups, as in the reference library. Groups are deprecated, and are skipped as unknown
/// fields.
const MAX_NESTED: usize = 100;
const START_GROUP: u32 = 3;
const END_GROUP: u32 = 4;

/// Value of one field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    /// Four bytes, borrowed from the message.
    Fixed32(&'a [u8; 4]),
    Bytes(&'a [u8]),
}

/// Iterates over the fields of a message, in order.
#[derive(Debug, Clone)]
pub(crate) struct Message<'a> {
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Reads the number and value of the next field; skips groups.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, Problem> {
        while !self.rest.is_empty() {
            let (number, wire) = self.tag()?;
            match wire {
                START_GROUP => self.skip_group(number)?,
                END_GROUP => return Err("ends a group that was not started"),
                wire => return Ok(Some((number, self.value(wire)?))),
            }
        }
        Ok(None)
    }

    fn tag(&mut self) -> Result<(u32, u32), Problem> {
        let tag = u32::try_from(varint(&mut self.rest)?).map_err(|_| "has a field number of 2²⁹ or more")?;
        if tag >> 3 == 0 { Err("has a field numbered 0") } else { Ok((tag >> 3, tag & 7)) }
    }

    fn value(&mut self, wire: u32) -> Result<Value<'a>, Problem> {
        Ok(match wire {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => Value::Fixed64(*self.take_chunk()?),
            2 => {
                let len = varint(&mut self.rest)?;
                Value::Bytes(self.take(len)?)
            }
            5 => Value::Fixed32(self.take_chunk()?),
            _ => return Err("has a field of an unknown wire type"),
        })
    }

    /// Skips the rest of group `number`, whose start tag was already read.
    fn skip_group(&mut self, number: u32) -> Result<(), Problem> {
        let mut open = vec![number];
        while let Some(&inner) = open.last() {
            if self.rest.is_empty() {
                return Err("ends inside a group");
            }
            match self.tag()? {
                (_, START_GROUP) if open.len() == MAX_NESTED => return Err("nests groups deeper than 100"),
                (number, START_GROUP) => open.push(number),
                (number, END_GROUP) if number == inner => drop(open.pop()),
                (_, END_GROUP) => return Err("ends a group that was not started"),
                (_, wire) => drop(self.value(wire)?),
            }
        }
        Ok(())
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], Problem> {
        let len = usize::try_from(len).ok().filter(|&len| len <= self.rest.len()).ok_or("ends inside a field")?;
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(taken)
    }

    fn take_chunk<const N: usize>(&mut self) -> Result<&'a [u8; N], Problem> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or("ends inside a field")?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Reads a varint from the front of `bytes`.
pub(crate) fn varint(bytes: &mut &[u8]) -> Result<u64, Problem> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if at == 10 {
            return Err("has a number longer than 10 bytes");
        }
        // Only one bit of the tenth byte fits in 64 bits. The other bits of this byte are dropped, as in the reference
        // library.
        value |= u64::from(byte & 0x7f) << (7 * at as u32);
        if byte & 0x80 == 0 {
            *bytes = &bytes[at + 1..];
            return Ok(value);
        }
    }
    Err(if bytes.len() >= 10 { "has a number longer than 10 bytes" } else { "ends inside a number" })
}

/// Appends a varint.
pub(crate) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Encoded size of a varint in bytes.
pub(crate) fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Appends the tag and the length of a field whose content has `len` bytes.
pub(crate) fn put_len(number: u32, len: usize, out: &mut Vec<u8>) {
    put_varint(u64::from(number << 3 | 2), out);
    put_varint(len as u64, out);
}

/// Encoded size of a field with `len` bytes of content: tag (one byte), length and content.
pub(crate) fn field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn prop_varint_round_trips(value: u64, shift in 0..64u32) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            put_varint(value, &mut bytes);
            prop_assert_eq!(bytes.len(), varint_len(value));
            let mut rest = bytes.as_slice();
            prop_assert_eq!(varint(&mut rest), Ok(value));
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn prop_walk_of_noise_ends(bytes: Vec<u8>) {
            let mut message = Message::new(&bytes);
            let fields = std::iter::from_fn(|| message.next().ok().flatten()).count();
            prop_assert!(fields <= bytes.len());
        }
    }

    #[test]
    fn varint_too_long_or_cut_errs() {
        assert_eq!(varint(&mut &[0x80; 10][..]), Err("has a number longer than 10 bytes"));
        assert_eq!(varint(&mut &[0x80; 11][..]), Err("has a number longer than 10 bytes"));
        assert_eq!(varint(&mut &[0x80; 3][..]), Err("ends inside a number"));
        assert_eq!(varint(&mut &[][..]), Err("ends inside a number"));
        assert_eq!(varint(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1][..]), Ok(u64::MAX));
    }

    #[test]
    fn groups_are_skipped_and_bounded() {
        // Encodes group 1 { field 2 = 5 }, then field 3 = 7.
        let mut message = Message::new(&[0x0b, 0x10, 5, 0x0c, 0x18, 7]);
        assert_eq!(message.next(), Ok(Some((3, Value::Varint(7)))));
        assert_eq!(message.next(), Ok(None));
        assert_eq!(Message::new(&[0x0b; 101]).next(), Err("nests groups deeper than 100"));
        assert_eq!(Message::new(&[0x0b; 100]).next(), Err("ends inside a group"));
        assert_eq!(Message::new(&[0x0b, 0x14]).next(), Err("ends a group that was not started"));
        assert_eq!(Message::new(&[0x0c]).next(), Err("ends a group that was not started"));
        assert_eq!(Message::new(&[0x00]).next(), Err("has a field numbered 0"));
        assert_eq!(Message::new(&[0x0e]).next(), Err("has a field of an unknown wire type"));
        assert_eq!(Message::new(&[0x0a, 5, 1]).next(), Err("ends inside a field"));
    }
}
