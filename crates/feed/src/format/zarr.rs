// SPDX-License-Identifier: Apache-2.0
//! Zarr format, versions 2 and 3: one array, or several arrays of a group. Each row is a sample. When a dataset is
//! opened, its metadata and shard indexes are read once, and the format's JSON document stores them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use penstock_record::chunk::zarr::Array;
use penstock_types::{ByteRange, Error, Result, with_separators};
use serde::{Deserialize, Serialize};

use crate::chunked_arrays::{Blocks, Column, MAX_CHUNKS, Stored, numbers};
use penstock_dataset::key_names::last_component;
use penstock_dataset::manifest::Manifest;

/// Name of the value if the dataset is a single array.
const ARRAY: &str = "array";

/// File names of Zarr metadata.
const NAMES: [&str; 2] = ["zarr.json", ".zarray"];

/// Maximum number of arrays to read if the user names no arrays.
const MAX_ARRAYS: usize = 1024;

/// Metadata read from a Zarr dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZarrMetadata {
    /// Metadata of each array (JSON), by array path. The root array has an empty path.
    pub arrays: BTreeMap<String, String>,
    /// Stored bytes of each shard index in hexadecimal, by the shard's key.
    #[serde(default)]
    pub shards: BTreeMap<String, String>,
}

/// True if the listing contains Zarr metadata.
pub(super) fn is_zarr(manifest: &Manifest) -> bool {
    manifest
        .objects
        .iter()
        .any(|entry| NAMES.iter().any(|name| last_component(entry.key.as_bytes()) == name.as_bytes()))
}

/// Finds the metadata objects of the named arrays, or of all arrays if none is named. Returns, for each array, its path
/// and the index of its metadata object in the listing.
pub(crate) fn metadata(arrays: &[String], listing: &Manifest) -> Result<Vec<(String, usize)>> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for (number, entry) in listing.objects.iter().enumerate() {
        let Ok(key) = std::str::from_utf8(entry.key.as_bytes()) else { continue };
        let (path, name) = key.rsplit_once('/').unwrap_or(("", key));
        // If an array has metadata of both versions, the metadata of version 3 is used.
        if NAMES.contains(&name) && (!found.contains_key(path) || name == NAMES[0]) {
            found.insert(path.to_owned(), number);
        }
    }
    if found.is_empty() {
        return Err(Error::NotFound { place: format!("any zarr.json or .zarray under {}", listing.url) });
    }
    if arrays.is_empty() {
        if found.len() > MAX_ARRAYS {
            let problem = format!(
                "{} contains {} arrays; name the arrays to read: penstock.formats.zarr(...)",
                listing.url,
                with_separators(found.len() as u64)
            );
            return Err(Error::config("format", problem));
        }
        return Ok(found.into_iter().collect());
    }
    let named = |name: &String| match found.get(name.trim_matches('/')) {
        Some(number) => Ok((name.trim_matches('/').to_owned(), *number)),
        None => {
            let known: Vec<&str> = found.keys().map(String::as_str).filter(|path| !path.is_empty()).take(12).collect();
            let problem = format!("{} has no array `{name}`; its arrays are `{}`", listing.url, known.join("`, `"));
            Err(Error::config("format", problem))
        }
    };
    arrays.iter().map(named).collect()
}

/// True for the metadata of a group. A group is skipped, because it has no elements of its own.
pub(crate) fn is_group(json: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(json).is_ok_and(|json| json["node_type"] == "group")
}

fn place(listing: &Manifest, path: &str) -> String {
    format!("{}{path}", listing.url)
}

fn key(path: &str, below: &str) -> String {
    if path.is_empty() { below.to_owned() } else { format!("{path}/{below}") }
}

/// Returns the shards of all sharded arrays, as (key, index in the listing, byte range of the shard index).
pub(crate) fn shards(metadata: &ZarrMetadata, listing: &Manifest) -> Result<Vec<(String, usize, ByteRange)>> {
    let numbers = numbers(listing);
    let mut found = Vec::new();
    for (path, json) in &metadata.arrays {
        let array = Array::parse(json.as_bytes(), &place(listing, path))?;
        let Some(sharding) = &array.sharding else { continue };
        let (grid, len) = (array.grid(), sharding.index_len() as u64);
        let count = grid.iter().try_fold(1usize, |count, side| count.checked_mul(*side));
        let Some(count) = count.filter(|&count| count <= MAX_CHUNKS) else {
            let what = format!(
                "an array of more than {} shards ({})",
                with_separators(MAX_CHUNKS as u64),
                place(listing, path)
            );
            return Err(Error::Unsupported { what, by: "the feed".to_owned() });
        };
        for number in 0..count {
            let (mut rest, mut at) = (number, vec![0; grid.len()]);
            for axis in (0..grid.len()).rev() {
                (at[axis], rest) = (rest % grid[axis], rest / grid[axis]);
            }
            let name = key(path, &array.key(&at));
            let Some(&object) = numbers.get(name.as_bytes()) else { continue };
            let size = listing.objects[object].size;
            let Some(start) = size.checked_sub(len) else {
                let problem = format!(
                    "ends inside its shard index (have {} of {} bytes)",
                    with_separators(size),
                    with_separators(len)
                );
                return Err(Error::corrupt(place(listing, &name), problem));
            };
            found.push((name, object, ByteRange::new(if sharding.index_first { 0 } else { start }, len)));
        }
    }
    Ok(found)
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks_exact(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.map(byte).collect()
}

/// Converts the bytes of a shard index to hexadecimal, which is their form in the format's JSON document.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Adds the blocks of a dataset after its metadata is read. Uses the arrays in `arrays`, in that order. If the list is
/// empty, uses all arrays.
pub(super) fn blocks(
    mut blocks: Blocks,
    arrays: &[String],
    metadata: &ZarrMetadata,
    listing: &Manifest,
) -> Result<Blocks> {
    let numbers = numbers(listing);
    let paths: Vec<&str> = match arrays {
        [] => metadata.arrays.keys().map(String::as_str).collect(),
        named => named.iter().map(|name| name.trim_matches('/')).collect(),
    };
    let (mut parsed, mut columns) = (Vec::new(), Vec::new());
    for path in &paths {
        let json = metadata.arrays.get(*path).ok_or_else(|| Error::bug(format!("no metadata of `{path}`")))?;
        let array = Array::parse(json.as_bytes(), &place(listing, path))?;
        columns.push(Column {
            name: if path.is_empty() { ARRAY.to_owned() } else { (*path).to_owned() },
            spec: array.spec.clone(),
            chunk_shape: array.chunk_shape.clone(),
            shard_shape: array.sharding.as_ref().map(|sharding| sharding.shard_shape.clone()),
            flat: None,
            steps: array.steps.clone(),
            fill: array.fill.clone(),
        });
        parsed.push(array);
    }
    // Parsed shard indexes. An index is parsed when the first chunk of its shard is looked up.
    type Index = Vec<Option<(u64, u64)>>;
    let mut indexes: BTreeMap<usize, Index> = BTreeMap::new();
    blocks.add(&listing.url, columns, |column, at| {
        let (array, path) = (&parsed[column], paths[column]);
        let Some(sharding) = &array.sharding else {
            let number = numbers.get(key(path, &array.key(at)).as_bytes()).copied();
            let whole = |object: usize| ByteRange::new(0, listing.objects[object].size);
            return Ok(number.map(|object| Stored { object, range: whole(object), steps: None }));
        };
        let per: Vec<usize> =
            sharding.shard_shape.iter().zip(&array.chunk_shape).map(|(shard, chunk)| shard / chunk).collect();
        let shard: Vec<usize> = at.iter().zip(&per).map(|(at, per)| at / per).collect();
        let name = key(path, &array.key(&shard));
        let Some(&object) = numbers.get(name.as_bytes()) else { return Ok(None) };
        if let Entry::Vacant(free) = indexes.entry(object) {
            let place = place(listing, &name);
            let stored = metadata.shards.get(&name).and_then(|text| unhex(text));
            let stored =
                stored.ok_or_else(|| Error::corrupt(&*place, "has no valid shard index in the format's metadata"))?;
            free.insert(sharding.parse_index(&stored, listing.objects[object].size, &place)?);
        }
        let within = at.iter().zip(&per).fold(0, |number, (at, per)| number * per + at % per);
        let lies = indexes.get(&object).and_then(|index| index.get(within)).copied().flatten();
        Ok(lies.map(|(start, len)| Stored { object, range: ByteRange::new(start, len), steps: None }))
    })?;
    Ok(blocks)
}
