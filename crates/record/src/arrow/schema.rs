// SPDX-License-Identifier: Apache-2.0
//! Columns of an Arrow schema: their names, types and the numbers of their buffers.

use penstock_types::DType;

use super::flatbuffer::Table;

/// Maximum nesting depth of structs and lists.
const MAX_DEPTH: usize = 32;

/// Maximum number of fields, including nested ones. A wide table has about 10,000 fields. A damaged schema can refer to
/// the same fields many times.
const MAX_FIELDS: usize = 1 << 20;

/// Type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Numbers.
    Scalar(DType),
    /// Booleans, 8 in a byte.
    Bits,
    /// Byte strings, with offsets of 4 bytes, or of 8 if `wide`.
    Bytes {
        /// True for offsets of 8 bytes.
        wide: bool,
    },
    /// Byte strings in the view layout (16 bytes for each), as newer writers store them.
    Views,
    /// Byte strings of this fixed length.
    Fixed(usize),
}

/// How the number of items of each list is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    /// As offsets of 4 bytes.
    Narrow,
    /// As offsets of 8 bytes.
    Wide,
    /// All lists have this many items.
    Fixed(usize),
}

/// Number of a buffer of a record batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BufferNumber {
    /// Number of the buffer, without counting the additional buffers of view columns.
    pub number: usize,
    /// Number of view columns before the buffer. The number of additional buffers of a view column differs between
    /// batches.
    pub views: usize,
}

/// One list level of a nested column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Level {
    pub list: List,
    /// Offsets of the lists; not used if all lists have the same length.
    pub offsets: BufferNumber,
    /// Validity buffers of the items: those of the structs around them, and that of the next level's lists
    /// or of the values.
    pub items: Vec<BufferNumber>,
}

/// A column: the leaf of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Path of the column, joined with dots. Columns with equal paths are numbered (`a#2`).
    pub name: String,
    /// Type of a value, or the name of an unsupported type.
    pub element: std::result::Result<Element, String>,
    /// True if the byte strings are declared to be text.
    pub text: bool,
    /// Meaning of numbers that are times, such as `timestamp[us, UTC]`.
    pub time: Option<String>,
    /// Levels of lists, the outermost first; empty if a row has one value.
    pub(super) lists: Vec<Level>,
    /// Validity buffers of the rows: those of the structs around the column, and that of the list or value.
    pub(super) validity: Vec<BufferNumber>,
    /// First buffer of the values.
    pub(super) values: BufferNumber,
    /// For dictionary-encoded values: number of the dictionary, and type of the indices.
    pub(super) dictionary: Option<(i64, DType)>,
}

/// The columns of a schema, and the columns of its dictionaries.
#[derive(Debug, Default)]
pub(super) struct Schema {
    pub columns: Vec<Column>,
    /// Column of the values of each dictionary.
    pub dictionaries: Vec<(i64, Column)>,
}

/// Assigns buffers to fields in stored order.
#[derive(Default)]
struct Walk {
    next: BufferNumber,
    /// Number of fields so far.
    fields: usize,
    schema: Schema,
}

/// Properties that a field gets from its parents.
#[derive(Clone, Default)]
struct Around {
    path: String,
    validity: Vec<BufferNumber>,
    lists: Vec<Level>,
    /// Name to use in place of the stored one; empty for the child of a list, which adds nothing to the path.
    name: Option<&'static str>,
    /// Meaning of the values, if they are times.
    time: Option<String>,
    depth: usize,
}

impl Around {
    /// Adds the validity buffer of a field below these parents.
    fn push_validity(&mut self, number: BufferNumber) {
        self.lists.last_mut().map_or(&mut self.validity, |level| &mut level.items).push(number);
    }
}

/// Parses a schema. `None` if the schema is damaged.
pub(super) fn schema(table: &Table<'_>) -> Option<Schema> {
    let mut walk = Walk::default();
    for field in table.tables(1)? {
        walk.field(&field, &Around::default())?;
    }
    let mut columns: Vec<Column> = Vec::with_capacity(walk.schema.columns.len());
    let mut times = std::collections::HashMap::new();
    for mut column in walk.schema.columns {
        let count = times.entry(column.name.clone()).or_insert(0);
        *count += 1;
        if *count > 1 {
            column.name = format!("{}#{count}", column.name);
        }
        columns.push(column);
    }
    Some(Schema { columns, dictionaries: walk.schema.dictionaries })
}

fn int(table: &Table<'_>) -> std::result::Result<DType, String> {
    Ok(match (table.i32(0, 0), table.u8(1) != 0) {
        (8, true) => DType::I8,
        (16, true) => DType::I16,
        (32, true) => DType::I32,
        (64, true) => DType::I64,
        (8, false) => DType::U8,
        (16, false) => DType::U16,
        (32, false) => DType::U32,
        (64, false) => DType::U64,
        (bits, _) => return Err(format!("an integer of {bits} bits")),
    })
}

/// Type of a leaf: the element, whether the element is text, and the number of buffers after the validity buffer.
fn leaf(kind: u8, table: &Table<'_>) -> Option<(std::result::Result<Element, String>, bool, usize)> {
    let scalar = |dtype| Ok(Element::Scalar(dtype));
    let (bytes, wide) = (Ok(Element::Bytes { wide: false }), Ok(Element::Bytes { wide: true }));
    Some(match kind {
        2 => (int(table).map(Element::Scalar), false, 1),
        3 => match table.i16(0, 0) {
            0 => (scalar(DType::F16), false, 1),
            1 => (scalar(DType::F32), false, 1),
            2 => (scalar(DType::F64), false, 1),
            _ => return None,
        },
        4 => (bytes, false, 2),
        5 => (bytes, true, 2),
        6 => (Ok(Element::Bits), false, 1),
        7 => (Err("a decimal number".to_owned()), false, 1),
        8 => (scalar(if table.i16(0, 1) == 0 { DType::I32 } else { DType::I64 }), false, 1),
        9 => (scalar(if table.i32(1, 32) == 32 { DType::I32 } else { DType::I64 }), false, 1),
        10 | 18 => (scalar(DType::I64), false, 1),
        11 => (Err("an interval".to_owned()), false, 1),
        15 => {
            let len = usize::try_from(table.i32(0, 0)).ok()?;
            (if len > 0 { Ok(Element::Fixed(len)) } else { Err("byte strings of length 0".to_owned()) }, false, 1)
        }
        19 => (wide, false, 2),
        20 => (wide, true, 2),
        23 => (Ok(Element::Views), false, 1),
        24 => (Ok(Element::Views), true, 1),
        _ => return None,
    })
}

/// Meaning of a leaf type whose numbers are times.
fn time(kind: u8, table: &Table<'_>) -> Option<String> {
    let unit = |or: i16| ["s", "ms", "us", "ns"].get(usize::try_from(table.i16(0, or)).ok()?).copied();
    Some(match kind {
        8 if table.i16(0, 1) == 0 => "date[day]".to_owned(),
        8 => "date[ms]".to_owned(),
        9 => format!("time[{}]", unit(1)?),
        10 => match table.text(1).filter(|zone| !zone.is_empty()) {
            Some(zone) => format!("timestamp[{}, {zone}]", unit(0)?),
            None => format!("timestamp[{}]", unit(0)?),
        },
        18 => format!("duration[{}]", unit(1)?),
        _ => return None,
    })
}

impl Walk {
    fn take(&mut self, buffers: usize) -> BufferNumber {
        let first = self.next;
        self.next.number += buffers;
        first
    }

    /// Adds the columns of a field. `None` if the field is damaged.
    fn field(&mut self, field: &Table<'_>, around: &Around) -> Option<()> {
        self.fields += 1;
        if around.depth > MAX_DEPTH || self.fields > MAX_FIELDS {
            return None;
        }
        let (name, kind, children) = (field.text(0)?, field.u8(2), field.tables(5)?);
        let path = match (around.path.as_str(), around.name) {
            (path, Some("")) => path.to_owned(),
            ("", own) => own.unwrap_or(name).to_owned(),
            (path, own) => format!("{path}.{}", own.unwrap_or(name)),
        };
        let mut around = Around { path, depth: around.depth + 1, name: None, ..around.clone() };
        if let Some(encoding) = field.table(4) {
            let index = encoding.table(1).map_or(Ok(DType::I32), |table| int(&table));
            let (element, text, _) = leaf(kind, &field.table(3)?)
                .unwrap_or_else(|| (Err("a dictionary of structs or lists".to_owned()), false, 0));
            let number = encoding.i64(0);
            let mut own = Self::default();
            own.leaf(&Around::default(), element.clone(), text, None, 0);
            self.schema.dictionaries.extend(own.schema.columns.into_iter().map(|column| (number, column)));
            around.time = time(kind, &field.table(3)?);
            let dictionary = index.map(|index| (number, index));
            let element =
                dictionary.as_ref().map_err(Clone::clone).and(element.as_ref().map_err(Clone::clone)).copied();
            self.leaf(&around, element, text, dictionary.ok(), 1);
            return Some(());
        }
        if kind == 1 {
            // A column of nulls has no buffers.
            self.leaf(&around, Err("a column of nulls only".to_owned()), false, None, 0);
            return Some(());
        }
        let table = field.table(3)?;
        if let Some((element, text, buffers)) = leaf(kind, &table) {
            around.time = time(kind, &table);
            self.leaf(&around, element, text, None, buffers + 1);
            if matches!(kind, 23 | 24) {
                self.next.views += 1;
            }
            return Some(());
        }
        let list = match kind {
            12 | 17 => Some(List::Narrow),
            21 => Some(List::Wide),
            16 => Some(List::Fixed(usize::try_from(table.i32(0, 0)).ok()?)),
            _ => None,
        };
        if let Some(list) = list {
            let first = self.take(if matches!(list, List::Fixed(_)) { 1 } else { 2 });
            let [child] = children.as_slice() else { return None };
            around.push_validity(first);
            let offsets = BufferNumber { number: first.number + 1, ..first };
            around.lists.push(Level { list, offsets, items: Vec::new() });
            if kind != 17 {
                return self.field(child, &Around { name: Some(""), ..around });
            }
            // A map is a list of structs of a key and a value, whose names differ between writers.
            let entries = self.take(1);
            around.push_validity(entries);
            around.depth += 1;
            let children = child.tables(5)?;
            let [key, value] = children.as_slice() else { return None };
            self.field(key, &Around { name: Some("key"), ..around.clone() })?;
            return self.field(value, &Around { name: Some("value"), ..around });
        }
        if kind == 13 {
            let own = self.take(1);
            around.push_validity(own);
            return children.iter().try_for_each(|child| self.field(child, &around));
        }
        let what = self.skip(field, around.depth)?;
        self.leaf(&around, Err(what.to_owned()), false, None, 0);
        Some(())
    }

    /// Assigns the buffers of a field that is not read. Returns the name of the field's type.
    fn skip(&mut self, field: &Table<'_>, depth: usize) -> Option<&'static str> {
        self.fields += 1;
        if depth > MAX_DEPTH || self.fields > MAX_FIELDS {
            return None;
        }
        let (kind, table) = (field.u8(2), field.table(3)?);
        let (buffers, name) = match kind {
            _ if field.table(4).is_some() => (2, "a dictionary"),
            1 => (0, "nulls"),
            12 | 21 => (2, "a list"),
            13 | 16 => (1, "a struct"),
            14 => (1 + usize::from(table.i16(0, 0) == 1), "a union"),
            17 => (2, "a map"),
            22 => (0, "a run-end encoded column"),
            25 | 26 => (3, "a list view"),
            kind => (leaf(kind, &table)?.2 + 1, "a value"),
        };
        self.take(buffers);
        if matches!(kind, 23 | 24) {
            self.next.views += 1;
        }
        if field.table(4).is_none() {
            for child in field.tables(5)? {
                self.skip(&child, depth + 1)?;
            }
        }
        Some(name)
    }

    /// Adds a column. The values have `buffers` buffers, including the validity buffer. A column with a dictionary has
    /// one buffer more.
    fn leaf(
        &mut self,
        around: &Around,
        element: std::result::Result<Element, String>,
        text: bool,
        dictionary: Option<(i64, DType)>,
        buffers: usize,
    ) {
        let first = self.take(buffers + usize::from(dictionary.is_some()));
        let values = BufferNumber { number: first.number + 1, ..first };
        let mut around = around.clone();
        around.push_validity(first);
        let Around { path: name, validity, lists, time, .. } = around;
        self.schema.columns.push(Column { name, element, text, time, lists, validity, values, dictionary });
    }
}
