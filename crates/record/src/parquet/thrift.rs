// SPDX-License-Identifier: Apache-2.0
//! Parser for Thrift's compact protocol, as far as Parquet needs it: reads a struct field by field, and skips unwanted
//! fields. Allocates no memory, whatever sizes the bytes state.

/// Description of a problem in the bytes, without its location.
pub(super) type Problem = &'static str;

const ENDS: Problem = "ends inside a value";

/// Maximum nesting depth of structs and lists; Parquet's own metadata have a depth of 6.
const MAX_DEPTH: usize = 32;

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I8: u8 = 3;
const I16: u8 = 4;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// Value of a field that is a number, a boolean or a struct; fields of other types are skipped.
pub(super) enum Value<'i, 'a> {
    Number(i64),
    Struct(&'i mut Input<'a>),
}

/// Unread bytes; reads consume them from the front.
#[derive(Debug, Clone)]
pub(super) struct Input<'a> {
    rest: &'a [u8],
    depth: usize,
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, depth: 0 }
    }

    /// Number of unread bytes.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Reads the next `len` bytes.
    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], Problem> {
        let (taken, rest) = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len)).ok_or(ENDS)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn skip_bytes(&mut self, len: u64) -> Result<(), Problem> {
        self.take(len).map(drop)
    }

    fn byte(&mut self) -> Result<u8, Problem> {
        let (first, rest) = self.rest.split_first().ok_or(ENDS)?;
        self.rest = rest;
        Ok(*first)
    }

    pub(super) fn varint(&mut self) -> Result<u64, Problem> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("contains a number of more than 64 bits")
    }

    fn zigzag(&mut self) -> Result<i64, Problem> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    /// Reads a struct. Calls `field` with the number and value of each field that is a number, a boolean or a struct.
    /// If the value is a struct, `field` must read it by another call of this function.
    pub(super) fn fields(
        &mut self,
        mut field: impl FnMut(i16, Value<'_, 'a>) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        self.deeper(|input| {
            let mut number = 0i16;
            loop {
                let head = input.byte()?;
                let (step, kind) = (head >> 4, head & 15);
                if kind == 0 {
                    return Ok(());
                }
                number = match step {
                    0 => i16::try_from(input.zigzag()?).map_err(|_| "contains a field number of more than 16 bits")?,
                    step => {
                        number.checked_add(i16::from(step)).ok_or("contains a field number of more than 16 bits")?
                    }
                };
                match kind {
                    TRUE => field(number, Value::Number(1))?,
                    FALSE => field(number, Value::Number(0))?,
                    I8 => {
                        let value = input.byte()?.cast_signed();
                        field(number, Value::Number(value.into()))?;
                    }
                    I16..=I64 => {
                        let value = input.zigzag()?;
                        field(number, Value::Number(value))?;
                    }
                    STRUCT => field(number, Value::Struct(input))?,
                    kind => input.skip(kind)?,
                }
            }
        })
    }

    /// Reads a struct and discards it.
    pub(super) fn skip_struct(&mut self) -> Result<(), Problem> {
        self.fields(|_, value| match value {
            Value::Number(_) => Ok(()),
            Value::Struct(input) => input.skip_struct(),
        })
    }

    fn deeper(&mut self, read: impl FnOnce(&mut Self) -> Result<(), Problem>) -> Result<(), Problem> {
        if self.depth == MAX_DEPTH {
            return Err("nests Thrift structs deeper than 32 levels");
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// Skips an element of a list, a set or a map, or a field that is neither a number nor a struct.
    fn skip(&mut self, kind: u8) -> Result<(), Problem> {
        match kind {
            // As a list element, a boolean takes one byte.
            TRUE | FALSE | I8 => self.skip_bytes(1),
            I16..=I64 => self.varint().map(drop),
            DOUBLE => self.skip_bytes(8),
            UUID => self.skip_bytes(16),
            BINARY => {
                let len = self.varint()?;
                self.skip_bytes(len)
            }
            LIST | SET => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                self.skip_many(count, &[head & 15])
            }
            MAP => match self.varint()? {
                0 => Ok(()),
                count => {
                    let kinds = self.byte()?;
                    self.skip_many(count, &[kinds >> 4, kinds & 15])
                }
            },
            STRUCT => self.skip_struct(),
            _ => Err("contains an unknown Thrift type"),
        }
    }

    fn skip_many(&mut self, count: u64, kinds: &[u8]) -> Result<(), Problem> {
        // Each element takes at least one byte.
        if count > self.rest.len() as u64 {
            return Err(ENDS);
        }
        self.deeper(|input| (0..count).try_for_each(|_| kinds.iter().try_for_each(|&kind| input.skip(kind))))
    }
}
