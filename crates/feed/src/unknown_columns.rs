// SPDX-License-Identifier: Apache-2.0
//! Finds fields whose values do not exist in any object of a dataset. This check is for fields with a default: if the
//! user misspells the value's name, the default would hide the mistake.

use std::sync::Arc;

use futures::{StreamExt, stream};
use penstock_codec::Codec;
use penstock_types::{Deadline, Result};

use super::record_counts::{TRAILERS_IN_FLIGHT, table_end};
use super::source::Source;

/// Each entry of `wanted` lists the alternative names of one value. Returns the indices of the entries whose names do
/// not exist in any object. Newer files often have more columns, so the end of the last table is read first. Then the
/// ends of the other tables are read until all entries are found. Returns an empty list if the format does not list the
/// names of its values.
pub async fn unknown_columns(source: &Arc<Source>, wanted: &[Vec<String>], deadline: Deadline) -> Result<Vec<usize>> {
    let mut left: Vec<usize> = (0..wanted.len()).collect();
    let objects = source.manifest().objects.len() as u64;
    let last = objects.saturating_sub(1);
    let order = (last..objects).chain(0..last);
    let mut found = stream::iter(order).map(|object| columns(source, object, deadline));
    // The last object often contains all names.
    let Some(last) = found.next().await else { return Ok(Vec::new()) };
    let mut names = last.await?;
    let mut rest = found.buffer_unordered(TRAILERS_IN_FLIGHT);
    while let Some(known) = names {
        left.retain(|&at| !wanted[at].iter().any(|name| known.contains(name)));
        if left.is_empty() {
            break;
        }
        names = match rest.next().await {
            Some(names) => names?,
            None => return Ok(left),
        };
    }
    Ok(Vec::new())
}

async fn columns(source: &Arc<Source>, object: u64, deadline: Deadline) -> Result<Option<Vec<String>>> {
    let framing = source.framing();
    if let Some(columns) = framing.columns_of_object(object) {
        return Ok(Some(columns));
    }
    // The end of a table whose rows are counted group by group (Arrow IPC) does not contain the names.
    let is_grouped = framing.next_group(&[], 0, 0, "").is_some();
    if !framing.is_table() || is_grouped || source.codec(object) != Codec::None {
        return Ok(None);
    }
    let (end, _) = table_end(source, object, deadline).await?;
    let mut columns = framing.columns_of_end(&end, source.entry(object).size, &source.place(object))?;
    if let Some(columns) = &mut columns {
        columns.extend(source.partitions().proposed().map(|(name, ..)| name.to_owned()));
    }
    Ok(columns)
}
