// SPDX-License-Identifier: Apache-2.0
//! Columns of a Parquet file: their names, types, and the reason if a type is unsupported.

use std::collections::HashMap;

use ::parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use ::parquet::schema::types::ColumnDescriptor;
use penstock_types::DType;

/// Type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Numbers; booleans become uint8.
    Scalar(DType),
    /// Byte strings of variable length.
    Bytes,
    /// Byte strings of this fixed length.
    Fixed(usize),
}

/// A column of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Path of the column, joined with dots, without the two levels that a list adds. Columns with equal paths are
    /// numbered (`s.a#2`).
    pub name: String,
    /// Type of a value, or the name of an unsupported type.
    pub element: std::result::Result<Element, String>,
    /// True if a row contains a list of values.
    pub list: bool,
    /// True if the byte strings are declared to be text.
    pub text: bool,
}

pub(super) fn describe(column: &ColumnDescriptor) -> Column {
    let list = column.max_rep_level() > 0;
    let mut path: Vec<&str> = column.path().parts().iter().map(String::as_str).collect();
    // Remove the two levels of each list (`x.list.element`, or the names that older writers used for them).
    for _ in 0..column.max_rep_level() {
        if path.len() >= 3
            && let [.., "list" | "bag" | "array", "element" | "item" | "array_element"] = path[..]
        {
            path.truncate(path.len() - 2);
        }
    }
    let element = if column.max_rep_level() > 1 { Err("a list of lists".to_owned()) } else { element(column) };
    let logical = column.logical_type_ref();
    let text = matches!(logical, Some(LogicalType::String | LogicalType::Enum | LogicalType::Json))
        || matches!(column.converted_type(), ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON);
    Column { name: path.join("."), element, list, text }
}

/// Numbers columns with equal names as `s.a#1`, `s.a#2`, so that no column is read in place of another. This happens if
/// a column `s.a` exists beside a struct `s` with a field `a`.
pub(super) fn number_namesakes(columns: &mut [Column]) {
    let mut times: HashMap<String, usize> = HashMap::new();
    for column in columns.iter() {
        *times.entry(column.name.clone()).or_default() += 1;
    }
    times.retain(|_, times| *times > 1);
    let mut seen: HashMap<String, usize> = HashMap::new();
    for column in columns.iter_mut().filter(|column| times.contains_key(&column.name)) {
        let number = seen.entry(column.name.clone()).or_default();
        *number += 1;
        column.name = format!("{}#{number}", column.name);
    }
}

fn element(column: &ColumnDescriptor) -> std::result::Result<Element, String> {
    let (logical, converted) = (column.logical_type_ref(), column.converted_type());
    if matches!(logical, Some(LogicalType::Decimal { .. })) || converted == ConvertedType::DECIMAL {
        return Err("a decimal number".to_owned());
    }
    let scalar = |dtype| Ok(Element::Scalar(dtype));
    match column.physical_type() {
        Physical::BOOLEAN => scalar(DType::U8),
        Physical::INT32 => match converted {
            ConvertedType::INT_8 => scalar(DType::I8),
            ConvertedType::UINT_8 => scalar(DType::U8),
            ConvertedType::INT_16 => scalar(DType::I16),
            ConvertedType::UINT_16 => scalar(DType::U16),
            ConvertedType::UINT_32 => scalar(DType::U32),
            _ => scalar(DType::I32),
        },
        Physical::INT64 if converted == ConvertedType::UINT_64 => scalar(DType::U64),
        Physical::INT64 => scalar(DType::I64),
        Physical::INT96 => Err("a 96-bit time".to_owned()),
        Physical::FLOAT => scalar(DType::F32),
        Physical::DOUBLE => scalar(DType::F64),
        Physical::BYTE_ARRAY => Ok(Element::Bytes),
        Physical::FIXED_LEN_BYTE_ARRAY => match (logical, usize::try_from(column.type_length())) {
            (Some(LogicalType::Float16), Ok(2)) => scalar(DType::F16),
            (_, Ok(len)) if len > 0 => Ok(Element::Fixed(len)),
            _ => Err("byte strings of length 0".to_owned()),
        },
    }
}
