// SPDX-License-Identifier: Apache-2.0
//! Columns of a Parquet file: their names and types, and the names of unsupported types.

use std::collections::HashMap;

use ::parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use ::parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type, TypePtr};
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
    /// Path of the column, joined with dots, without the two levels that each list adds: `boxes`, or `people.name` for
    /// a list of structs. Columns with equal names are numbered (`s.a#2`).
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
    /// Meaning of numbers that are times, such as `timestamp[us, UTC]`.
    pub time: Option<String>,
}

/// Columns of a schema, in stored order.
pub(super) fn describe(schema: &SchemaDescriptor) -> Vec<Column> {
    let mut paths = Vec::new();
    for field in schema.root_schema().get_fields() {
        Path::default().walk(field, Some(field.name()), &mut paths);
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
    /// Adds `node`, under this name, and all nodes below it; appends the paths of the leaves to `found`.
    fn walk(mut self, node: &Type, shown: Option<&str>, found: &mut Vec<Self>) {
        let info = node.get_basic_info();
        self.stored.push(info.name().to_owned());
        self.shown.extend(shown.map(str::to_owned));
        let repetition = if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED };
        self.defined += i16::from(repetition != Repetition::REQUIRED);
        if repetition == Repetition::REPEATED {
            self.lists.push(self.defined);
        }
        if node.is_primitive() {
            return found.push(self);
        }
        if let Some((entries, sides)) = map_of(node) {
            self.stored.push(entries.name().to_owned());
            self.defined += 1;
            self.lists.push(self.defined);
            for (side, name) in sides.iter().zip(["key", "value"]) {
                self.clone().walk(side, Some(name), found);
            }
            return;
        }
        let list = list_of(node);
        for child in node.get_fields() {
            match list {
                // A list adds a repeated level, and usually an element level.
                Some(has_element) => {
                    let mut inner = self.clone();
                    if !has_element {
                        inner.walk(child, None, found);
                        continue;
                    }
                    inner.stored.push(child.name().to_owned());
                    inner.defined += 1;
                    inner.lists.push(inner.defined);
                    child.get_fields().iter().for_each(|element| inner.clone().walk(element, None, found));
                }
                None => self.clone().walk(child, Some(child.name()), found),
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
        let (name, path) = (self.shown.join("."), self.stored.join("."));
        Column { name, path, element, lists: self.lists, text, time: time(column) }
    }
}

/// If a group is a map, returns the repeated group of its entries, and the key and the value of an entry. The names of
/// these three nodes differ between writers.
fn map_of(group: &Type) -> Option<(&Type, &[TypePtr; 2])> {
    let info = group.get_basic_info();
    let is_map = matches!(info.logical_type_ref(), Some(LogicalType::Map))
        || matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE);
    let [entries] = group.get_fields() else { return None };
    let entries_info = entries.get_basic_info();
    let is_repeated = entries_info.has_repetition() && entries_info.repetition() == Repetition::REPEATED;
    if !is_map || !is_repeated || !entries.is_group() {
        return None;
    }
    Some((entries, entries.get_fields().try_into().ok()?))
}

/// If a group is a list, returns whether its elements are one level below the repeated level. Follows the Parquet
/// format's rules for files of older writers.
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
        // Some writers do not annotate their lists.
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

/// Meaning of a column whose numbers are times.
fn time(column: &ColumnDescriptor) -> Option<String> {
    let name = |unit: &TimeUnit| match unit {
        TimeUnit::MILLIS => "ms",
        TimeUnit::MICROS => "us",
        TimeUnit::NANOS => "ns",
    };
    Some(match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Timestamp(of)), _) => {
            let zone = if of.is_adjusted_to_u_t_c { ", UTC" } else { "" };
            format!("timestamp[{}{zone}]", name(&of.unit))
        }
        (Some(LogicalType::Time(of)), _) => format!("time[{}]", name(&of.unit)),
        (Some(LogicalType::Date), _) | (None, ConvertedType::DATE) => "date[day]".to_owned(),
        (None, ConvertedType::TIMESTAMP_MILLIS) => "timestamp[ms, UTC]".to_owned(),
        (None, ConvertedType::TIMESTAMP_MICROS) => "timestamp[us, UTC]".to_owned(),
        (None, ConvertedType::TIME_MILLIS) => "time[ms]".to_owned(),
        (None, ConvertedType::TIME_MICROS) => "time[us]".to_owned(),
        _ => return None,
    })
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
