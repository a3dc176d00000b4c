// SPDX-License-Identifier: Apache-2.0
//! Tests that any range of rows of a file that pyarrow wrote is read back with the values that pyarrow wrote, in every
//! supported page format and compression.

use crate::goldens;
use bytes::Bytes;
use penstock_record::parquet::{Element, Table, Values};
use penstock_types::{DType, Error};
use proptest::prelude::*;

const READ: [&str; 6] = ["plain", "snappy", "zstd", "gzip", "lz4", "brotli"];
const LIMIT: usize = 1 << 20;

fn open(name: &str) -> Table {
    let bytes = goldens::files("parquet").remove(&format!("{name}.parquet")).unwrap();
    Table::open(bytes.into(), &format!("{name}.parquet")).unwrap()
}

fn read(table: &Table, column: &str, rows: std::ops::Range<u64>) -> Result<Values, Error> {
    let number = table.column(column).unwrap_or_else(|| panic!("{column}: {:?}", table.columns()));
    table.read(number, rows, LIMIT)
}

/// Expected values of a column in `rows`, as `make_parquet.py` wrote them.
fn want(column: &str, rows: std::ops::Range<u64>) -> Values {
    let mut values = Values::default();
    let mut strings = |all: Vec<Vec<u8>>| {
        for one in all {
            values.strings.push(values.data.len());
            values.data.extend(one);
        }
        values.strings.push(values.data.len());
    };
    let bytes = |each: &dyn Fn(u64) -> Vec<u8>| rows.clone().flat_map(each).collect::<Vec<u8>>();
    match column {
        "text" => {
            strings(rows.clone().map(|i| if i == 4 { vec![] } else { format!("row {i}").into_bytes() }).collect());
            values.empty = rows.filter(|&i| i == 4).collect();
        }
        "blob" => strings(rows.map(|i| vec![i as u8; i as usize]).collect()),
        "image.bytes" => strings(rows.map(|i| vec![255, i as u8]).collect()),
        "words" => {
            let lists: Vec<Vec<Vec<u8>>> =
                rows.map(|i| (0..i % 3).map(|j| format!("w{j}").into_bytes()).collect()).collect();
            strings(lists.iter().flatten().cloned().collect());
            values.rows = starts(lists.iter().map(Vec::len));
        }
        "tokens" => {
            values.empty = rows.clone().filter(|&i| i == 3).collect();
            let lists: Vec<u64> = rows.map(|i| if i == 3 { 0 } else { i }).collect();
            values.data = lists.iter().flat_map(|&len| 0..len as i32).flat_map(i32::to_le_bytes).collect();
            values.rows = starts(lists.iter().map(|&len| len as usize));
        }
        "square" => {
            values.rows = starts(rows.clone().map(|_| 3));
            values.data = bytes(&|i| (i..i + 3).flat_map(|value| (value as f32).to_le_bytes()).collect());
        }
        "i8" => values.data = bytes(&|i| (i as i8 - 5).to_le_bytes().to_vec()),
        "u16" => values.data = bytes(&|i| (i as u16 * 1000).to_le_bytes().to_vec()),
        "u32" => values.data = bytes(&|i| (i as u32).to_le_bytes().to_vec()),
        "i32" => values.data = bytes(&|i| (i as i32 - 5).to_le_bytes().to_vec()),
        "i64" => values.data = bytes(&|i| (i << 40).to_le_bytes().to_vec()),
        "f16" => {
            values.data = bytes(&|i| {
                [0u16, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700, 0x4800, 0x4880][i as usize]
                    .to_le_bytes()
                    .to_vec()
            })
        }
        "f32" => values.data = bytes(&|i| (i as f32 / 4.0).to_le_bytes().to_vec()),
        "f64" => values.data = bytes(&|i| (i as f64 / 8.0).to_le_bytes().to_vec()),
        "bool" => values.data = bytes(&|i| vec![u8::from(i % 3 == 0)]),
        "fixed" => values.data = bytes(&|i| vec![i as u8; 3]),
        _ => panic!("{column}"),
    }
    values
}

fn starts(lens: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut at = vec![0];
    lens.for_each(|len| at.push(at.last().unwrap() + len));
    at
}

const COLUMNS: [&str; 16] = [
    "i8",
    "u16",
    "u32",
    "i32",
    "i64",
    "f16",
    "f32",
    "f64",
    "bool",
    "text",
    "blob",
    "fixed",
    "tokens",
    "words",
    "square",
    "image.bytes",
];

#[test]
fn columns_of_pyarrow_read_as_it_wrote_them() {
    for name in READ {
        let table = open(name);
        assert_eq!(table.rows(), 10);
        for column in COLUMNS {
            assert_eq!(read(&table, column, 0..10).unwrap(), want(column, 0..10), "{name} {column}");
        }
    }
    let table = open("snappy");
    assert_eq!(table.groups(), [0, 4, 8, 10]);
    let element = |name: &str| table.columns()[table.column(name).unwrap()].element.clone();
    assert_eq!(element("fixed"), Ok(Element::Fixed(3)));
    assert_eq!(element("f16"), Ok(Element::Scalar(DType::F16)));
    assert_eq!(table.columns()[table.column("tokens").unwrap()].lists, [2]);
}

#[test]
fn values_without_a_tensor_are_refused_by_name() {
    let table = open("zstd");
    let error = |column: &str| read(&table, column, 0..10).unwrap_err().to_string();
    assert_eq!(
        error("price"),
        "a decimal number (column `price` of zstd.parquet) is not supported by the Parquet reader"
    );
    assert_eq!(error("holes"), "column `holes` of zstd.parquet is null in row 7");
    assert_eq!(error("gaps"), "column `gaps` of zstd.parquet is null in row 0");
    assert_eq!(read(&table, "holes", 0..7).unwrap().data.len(), 56);
    assert_eq!(table.column("none"), None);
    let error = table.read(table.column("i64").unwrap(), 0..3, 8).unwrap_err().to_string();
    assert_eq!(error, "a page of column `i64` of zstd.parquet needs 24 bytes, but the memory budget is 8 bytes");
    let plain = open("plain");
    let error = plain.read(plain.column("i64").unwrap(), 0..3, 8).unwrap_err().to_string();
    assert_eq!(error, "column `i64` of plain.parquet needs 24 bytes, but the memory budget is 8 bytes");
}

#[test]
fn nulls_inside_lists_of_structs_are_named_and_keep_their_places() {
    for name in ["odd1", "odd2"] {
        let table = open(name);
        let column = table.column("o.list.element.x").unwrap();
        let values = table.read_nulls(column, 0..5, LIMIT).unwrap();
        let numbers = |numbers: &[i64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        // The rows are: [1, null struct, 3], null, [], [a struct with a null], [5].
        assert_eq!(values.data, numbers(&[1, 0, 3, 0, 5]), "{name}");
        assert_eq!((values.rows, values.nulls), (vec![0, 3, 3, 3, 4, 5], vec![0, 3]), "{name}");
        assert_eq!((table.column("o.x"), values.empty), (Some(column), vec![1]));
        assert_eq!(table.read(column, 4..5, LIMIT).unwrap().data, numbers(&[5]));
    }
}

#[test]
fn columns_of_one_name_are_numbered_and_lists_of_lists_keep_their_own() {
    let table = open("odd1");
    let names: Vec<&str> = table.columns().iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["o.x", "s.a#1", "s.a#2", "u32", "u64", "deep", "prefixed", "binary"]);
    let data = |column: &str| read(&table, column, 0..5).unwrap().data;
    assert_eq!(data("s.a#1"), (1..=5i32).flat_map(i32::to_le_bytes).collect::<Vec<u8>>());
    assert_eq!(data("s.a#2"), (0..5i32).flat_map(i32::to_le_bytes).collect::<Vec<u8>>());
    let deep = read(&table, "deep", 1..3).unwrap();
    assert_eq!((deep.rows, deep.inner), (vec![0, 1, 2], vec![vec![0, 1, 2], vec![0, 1, 2]]));
    assert_eq!(deep.data, [1f32, 2.0].map(f32::to_le_bytes).concat());
}

#[test]
fn unsigned_numbers_and_strings_in_deltas_read_as_they_were_written() {
    for name in ["odd1", "odd2"] {
        let table = open(name);
        let data = |column: &str| read(&table, column, 0..5).unwrap().data;
        assert_eq!(data("u32"), (0..5).flat_map(|i| (u32::MAX - i).to_le_bytes()).collect::<Vec<u8>>());
        assert_eq!(data("u64"), (0..5).flat_map(|i| (u64::MAX - i).to_le_bytes()).collect::<Vec<u8>>());
        assert_eq!(
            data("prefixed"),
            (0..5).flat_map(|i| format!("the same beginning {i}").into_bytes()).collect::<Vec<u8>>()
        );
        assert_eq!(data("binary"), b"12345678".repeat(5));
    }
}

#[test]
fn cut_files_are_named() {
    let bytes = goldens::files("parquet").remove("plain.parquet").unwrap();
    for len in [0, 3, bytes.len() / 2, bytes.len() - 1] {
        let error = Table::open(Bytes::copy_from_slice(&bytes[..len]), "a.parquet").unwrap_err().to_string();
        assert!(error.starts_with("a.parquet is not a Parquet file"), "{error}");
    }
}

#[test]
fn a_list_that_goes_on_before_it_began_is_damage() {
    let mut bytes = goldens::files("parquet").remove("lz4.parquet").unwrap();
    let at = ((3_035_724_024_728_579_755u128 * bytes.len() as u128) >> 64) as usize; // found by the property below
    bytes[at] = 31;
    let table = Table::open(bytes.into(), "p").unwrap();
    let read = |column| table.read(column, 0..table.rows().min(100), LIMIT);
    let errors: Vec<String> = (0..table.columns().len()).filter_map(|c| read(c).err()).map(|e| e.to_string()).collect();
    assert!(
        errors.iter().any(|error| error.contains("an item of a list comes before the start of the list")),
        "{errors:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn prop_any_rows_read_alike(file in 0..READ.len(), column in 0..COLUMNS.len(), rows in (0..=10u64, 0..=10u64)) {
        let rows = rows.0.min(rows.1)..rows.0.max(rows.1);
        let table = open(READ[file]);
        let (mut have, mut want) = (read(&table, COLUMNS[column], rows.clone()).unwrap(), want(COLUMNS[column], rows));
        // If no rows are read, the lists of offsets are either empty or hold only the end offset 0: treat both alike.
        for ends in [&mut have.strings, &mut want.strings, &mut have.rows, &mut want.rows] {
            if ends.as_slice() == [0] { ends.clear() }
        }
        prop_assert_eq!(have, want);
    }

    #[test]
    fn prop_damaged_files_end_without_a_panic(file in 0..READ.len(), at: prop::sample::Index, with: u8) {
        let mut bytes = goldens::files("parquet").remove(&format!("{}.parquet", READ[file])).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = with;
        let Ok(table) = Table::open(bytes.into(), "p") else { return Ok(()) };
        for column in 0..table.columns().len() {
            let _ = table.read(column, 0..table.rows().min(100), LIMIT);
        }
    }
}
