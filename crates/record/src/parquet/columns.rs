// SPDX-License-Identifier: Apache-2.0
//! Columns of a Parquet file: their names, types, and the reason if a type is unsupported.

use std::collections::HashMap;

use ::parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use ::parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type};
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

/// Maximum depth of lists of lists.
const MAX_LISTS: usize = 8;

/// A column of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Path of the column, joined with dots, without the two levels that each list adds: `boxes`, or `people.name` for a
    /// list of structs. Columns with equal names are numbered (`s.a#2`).
    pub name: String,
    /// Path of the column as stored (`people.list.element.name`).
    pub path: String,
    /// Type of a value, or the name of an unsupported type.
    pub element: std::result::Result<Element, String>,
    /// For each level of lists, the outermost first: the definition level at which the list has an element. Empty for a
    /// column without lists.
    pub lists: Vec<i16>,
    /// True if the byte strings are declared to be text.
    pub text: bool,
}

/// Columns of a schema, in stored order.
pub(super) fn describe(schema: &SchemaDescriptor) -> Vec<Column> {
    let mut paths = Vec::new();
    for field in schema.root_schema().get_fields() {
        Path::default().walk(field, true, &mut paths);
    }
    // Both lists contain the leaves of the schema in order.
    paths.into_iter().zip(schema.columns()).map(|(path, column)| path.column(column)).collect()
}

/// Path from the root of a schema to a node.
#[derive(Default, Clone)]
struct Path {
    stored: Vec<String>,
    shown: Vec<String>,
    defined: i16,
    lists: Vec<i16>,
}

impl Path {
    /// Adds `node` and all nodes below it; appends the paths of the leaves to `found`.
    fn walk(mut self, node: &Type, is_shown: bool, found: &mut Vec<Self>) {
        let info = node.get_basic_info();
        self.stored.push(info.name().to_owned());
        if is_shown {
            self.shown.push(info.name().to_owned());
        }
        let repetition = if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED };
        self.defined += i16::from(repetition != Repetition::REQUIRED);
        if repetition == Repetition::REPEATED {
            self.lists.push(self.defined);
        }
        if node.is_primitive() {
            return found.push(self);
        }
        let list = list_of(node);
        for child in node.get_fields() {
            match list {
                // A list adds a repeated level, and usually an element level.
                Some(has_element) => {
                    let mut inner = self.clone();
                    if !has_element {
                        inner.walk(child, false, found);
                        continue;
                    }
                    inner.stored.push(child.name().to_owned());
                    inner.defined += 1;
                    inner.lists.push(inner.defined);
                    child.get_fields().iter().for_each(|element| inner.clone().walk(element, false, found));
                }
                None => self.clone().walk(child, true, found),
            }
        }
    }

    fn column(self, column: &ColumnDescriptor) -> Column {
        let logical = column.logical_type_ref();
        let text = matches!(logical, Some(LogicalType::String | LogicalType::Enum | LogicalType::Json))
            || matches!(column.converted_type(), ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON);
        let element = match self.lists.len() {
            0..=MAX_LISTS => element(column),
            levels => Err(format!("lists in {levels} levels")),
        };
        Column { name: self.shown.join("."), path: self.stored.join("."), element, lists: self.lists, text }
    }
}

/// If a group is a list, returns whether its elements are one level below the repeated level. For files of older
/// writers, follows the rules of the Parquet format.
fn list_of(group: &Type) -> Option<bool> {
    let info = group.get_basic_info();
    let is_list =
        matches!(info.logical_type_ref(), Some(LogicalType::List)) || info.converted_type() == ConvertedType::LIST;
    let [repeated] = group.get_fields() else { return None };
    let repeated_info = repeated.get_basic_info();
    if !repeated_info.has_repetition() || repeated_info.repetition() != Repetition::REPEATED {
        return None;
    }
    let element = match repeated.is_group() {
        true => match repeated.get_fields() {
            [element] => Some(element.name()),
            _ => None,
        },
        false => None,
    };
    if !is_list {
        // Some writers do not mark their lists.
        let names = (repeated.name(), element?);
        return matches!(names, ("list" | "bag" | "array", "element" | "item" | "array_element")).then_some(true);
    }
    let is_tuple = repeated.name() == format!("{}_tuple", group.name());
    Some(element.is_some_and(|element| !is_tuple && (repeated.name() != "array" || element == "array_element")))
}

/// Numbers columns with equal names as `s.a#1`, `s.a#2`, so that no column is read in place of another. Names are equal
/// if a column `s.a` exists beside a struct `s` with a field `a`.
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
