// SPDX-License-Identifier: Apache-2.0
//! Parquet page header: parses only the fields that a reader needs.

use super::thrift::{Input, Problem, Value};

pub(super) const DATA: i32 = 0;
pub(super) const DICTIONARY: i32 = 2;
pub(super) const DATA_V2: i32 = 3;

/// Header of a page, with the fields of all page kinds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) kind: i32,
    pub(super) uncompressed: usize,
    pub(super) compressed: usize,
    pub(super) crc: Option<u32>,
    pub(super) values: u32,
    pub(super) encoding: i32,
    pub(super) definition_encoding: i32,
    pub(super) repetition_encoding: i32,
    pub(super) nulls: u32,
    pub(super) rows: u32,
    pub(super) definition_len: u32,
    pub(super) repetition_len: u32,
    pub(super) is_compressed: bool,
    pub(super) is_sorted: bool,
}

impl Header {
    pub(super) fn read(input: &mut Input<'_>) -> Result<Self, Problem> {
        let (mut top, mut data, mut dictionary, mut v2) = ([None; 5], [None; 5], [None; 4], [None; 8]);
        fn note(into: &mut [Option<i64>], number: i16, value: i64) {
            if let Some(cell) = usize::try_from(number).ok().and_then(|number| into.get_mut(number)) {
                *cell = Some(value);
            }
        }
        input.fields(|number, value| match (number, value) {
            (number, Value::Number(value)) => {
                note(&mut top, number, value);
                Ok(())
            }
            (5 | 7 | 8, Value::Struct(inner)) => {
                let into: &mut [Option<i64>] = match number {
                    5 => &mut data,
                    7 => &mut dictionary,
                    _ => &mut v2,
                };
                inner.fields(|number, value| match value {
                    Value::Number(value) => {
                        note(into, number, value);
                        Ok(())
                    }
                    Value::Struct(statistics) => statistics.skip_struct(),
                })
            }
            (_, Value::Struct(other)) => other.skip_struct(),
        })?;
        let kind = top[1].and_then(|kind| i32::try_from(kind).ok()).ok_or("has no kind")?;
        let size = |field: Option<i64>| field.and_then(|size| usize::try_from(size).ok()).ok_or("has no size");
        let count =
            |field: Option<i64>| u32::try_from(field.unwrap_or(0)).map_err(|_| "has a negative number of values");
        let encoding = |field: Option<i64>| field.and_then(|number| i32::try_from(number).ok()).unwrap_or(-1);
        let of = match kind {
            DATA => data[1],
            DICTIONARY => dictionary[1],
            DATA_V2 => v2[1],
            _ => Some(0),
        };
        if of.is_none() {
            return Err("has no number of values");
        }
        Ok(Self {
            kind,
            uncompressed: size(top[2])?,
            compressed: size(top[3])?,
            crc: top[4].map(|crc| crc as u32),
            values: count(of)?,
            encoding: encoding(match kind {
                DATA => data[2],
                DICTIONARY => dictionary[2],
                _ => v2[4],
            }),
            definition_encoding: encoding(data[3]),
            repetition_encoding: encoding(data[4]),
            nulls: count(v2[2])?,
            rows: count(v2[3])?,
            definition_len: count(v2[5])?,
            repetition_len: count(v2[6])?,
            is_compressed: v2[7] != Some(0),
            is_sorted: dictionary[3] == Some(1),
        })
    }

    pub(super) fn is_data(&self) -> bool {
        matches!(self.kind, DATA | DATA_V2)
    }
}
