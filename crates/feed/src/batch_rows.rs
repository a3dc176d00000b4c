// SPDX-License-Identifier: Apache-2.0
//! Batch rows: collects the rows of a batch, then returns them as columns. Values of fixed shape are written directly
//! into the slot. Values of variable length are collected per row; after the last row, they are joined into one array
//! of values and one of offsets.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use penstock_record::image::decode_into;
use penstock_types::{DType, Error, Result, TensorSpec, lock, with_separators};

use super::batch_buffer::{Layout, Pool, Slot, Tensor};
use super::decode_memory::Values;
use super::field::{Field, Kind, PadTo, Padding, TextErrors};
use super::value::Value;
use super::value::nested_lists::Lists;

/// Values of a variable-length field, one entry per row.
type Loose = Mutex<Vec<Lists>>;

/// Memory of a batch while its rows are filled.
pub(crate) struct Rows {
    slot: Arc<Slot>,
    /// One entry per field. `None` for a field of fixed shape.
    loose: Vec<Option<Loose>>,
    /// Memory limit of the variable-length values.
    values: Values,
    /// Maximum length of the batch's bucket, to which fields can be padded. `None` if the batch has no bucket.
    bucket: Option<usize>,
}

/// Destination row of a record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    /// Row number in the batch.
    pub number: u32,
    /// Random key that determines the crop of an image.
    pub key: u64,
    /// Name of the record in error messages.
    pub place: &'a str,
}

/// Column of a delivered batch.
#[derive(Debug, Clone)]
pub enum Column {
    /// A field of fixed type and shape.
    Tensor(Tensor),
    /// A field of variable length. Row i is `values[offsets[0][i]..offsets[0][i + 1]]`. If there are several levels of
    /// offsets, this range selects lists of the next level instead of values.
    Ragged {
        /// Items of all rows, concatenated.
        values: Tensor,
        /// Offsets (int64) of each level, with the outermost level first. A level has one offset more than it has rows
        /// or lists. For lists of byte strings, the last level contains the offsets of the strings in `values`.
        offsets: Vec<Tensor>,
        /// True if the rows are byte strings rather than numbers.
        is_bytes: bool,
        /// True if the byte strings are valid UTF-8 and are delivered as text.
        is_text: bool,
    },
    /// A field of variable length, padded to one array.
    Padded {
        /// Padded items. The first two dimensions are the rows and the items per row.
        values: Tensor,
        /// Name of the mask, and the mask (bool). The mask is true for the sample's items and false for padding.
        mask: Option<(String, Tensor)>,
    },
}

impl Column {
    /// Tensor of a fixed-shape field; `None` for a field of variable length.
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(tensor) | Self::Padded { values: tensor, .. } => Some(tensor),
            Self::Ragged { .. } => None,
        }
    }

    /// Size of the column in bytes.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Tensor(tensor) => tensor.size_bytes(),
            Self::Ragged { values, offsets, .. } => {
                values.size_bytes() + offsets.iter().map(Tensor::size_bytes).sum::<usize>()
            }
            Self::Padded { values, mask } => {
                values.size_bytes() + mask.as_ref().map_or(0, |(_, mask)| mask.size_bytes())
            }
        }
    }
}

impl Rows {
    /// Creates the memory for `rows` rows of these fields. Values of fixed shape are stored in `slot`. `values` limits
    /// the memory of variable-length values.
    pub fn new(slot: Slot, fields: &[Field], rows: usize, values: Values) -> Self {
        let loose = fields.iter().map(|field| field.item().map(|_| Mutex::new(vec![Lists::default(); rows]))).collect();
        Self { slot: Arc::new(slot), loose, values, bucket: None }
    }

    /// Sets the maximum length of the batch's bucket.
    pub fn of_bucket(self, bucket: Option<usize>) -> Self {
        Self { bucket, ..self }
    }

    /// Memory limit of the variable-length values.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Writes the value `part` into row `to` of a field.
    ///
    /// # Safety
    /// Nothing else may access this row of the slot during the call.
    pub unsafe fn write(&self, column: usize, to: Row<'_>, field: &Field, part: &Value<'_>) -> Result<()> {
        let row = to.number as usize;
        let mismatch = |problem: String| Error::mismatch(to.place, format!("field `{}` {problem}", field.name));
        let not_utf8 = |why: String| Error::corrupt(to.place, format!("field `{}` is not UTF-8: {why}", field.name));
        let loose = || {
            let loose = self.loose[column].as_ref().ok_or_else(|| Error::bug(format!("{} has no rows", field.name)))?;
            Ok::<_, Error>(lock(loose))
        };
        // Reserves the memory before it is allocated.
        let admit = |bytes: usize| self.values.admit(loose()?[row].size_bytes(), bytes, &field.name);
        let put = |lists: Lists| {
            loose()?[row] = lists;
            Ok(())
        };
        match &field.kind {
            // SAFETY: the caller guarantees exclusive access to the row.
            Kind::Tensor(spec) => part.write(spec, unsafe { self.slot.row(column, row) }).map_err(mismatch),
            Kind::Present => {
                // SAFETY: the caller guarantees exclusive access to the row.
                unsafe { self.slot.row(column, row) }.fill(u8::from(!part.is_absent()));
                Ok(())
            }
            Kind::Padded(item, padding) => {
                admit(part.gathered_len(item))?;
                let mut bytes = part.gather(item).map_err(mismatch)?;
                let (size, width) = (item.size_bytes()?.max(1), self.width(padding));
                if let Some(width) = width.filter(|width| bytes.len() / size > *width) {
                    if !padding.truncates {
                        let problem =
                            format!("has {} items, but its row is padded to {width} items", bytes.len() / size);
                        return Err(mismatch(problem));
                    }
                    bytes.truncate(width * size);
                }
                put(Lists { bytes, ends: Vec::new() })
            }
            Kind::Bytes | Kind::Record => {
                let bytes = part.bytes().map_err(mismatch)?;
                admit(bytes.len())?;
                put(Lists { bytes: bytes.into_owned(), ends: Vec::new() })
            }
            Kind::Text(errors) => {
                let bytes = part.text().map_err(mismatch)?;
                let text = as_text(bytes, *errors).map_err(not_utf8)?;
                admit(text.len())?;
                put(Lists { bytes: text, ends: Vec::new() })
            }
            Kind::Ragged(_) | Kind::BytesList | Kind::Nested { .. } => {
                let (item, depth) = match &field.kind {
                    Kind::Ragged(item) => (Some(item), 1),
                    Kind::Nested { item, depth } => (item.as_ref(), *depth),
                    _ => (None, 1),
                };
                admit(part.lists_size(item, depth))?;
                let lists = part.lists(item, depth).map_err(mismatch)?;
                put(match field.text {
                    Some(errors) => as_texts(lists, errors).map_err(not_utf8)?,
                    None => lists,
                })
            }
            Kind::Image(spec) => {
                let bytes = part.bytes().map_err(mismatch)?;
                // SAFETY: the caller guarantees exclusive access to the row.
                decode_into(&bytes, spec, to.key, unsafe { self.slot.row(column, row) }, to.place)
            }
        }
    }

    /// Fills row `row` of `field` for a record without the value: with the default, or with no items.
    ///
    /// # Safety
    /// Nothing else may access this row of the slot during the call.
    pub unsafe fn write_absent(&self, column: usize, row: u32, field: &Field) {
        let default = field.default.as_deref().unwrap_or_default();
        match &self.loose[column] {
            Some(loose) => {
                lock(loose)[row as usize] = Lists { bytes: default.to_vec(), ends: Vec::new() };
            }
            None => {
                // SAFETY: the caller guarantees exclusive access to the row.
                let slot = unsafe { self.slot.row(column, row as usize) };
                slot.chunks_exact_mut(default.len().max(1)).for_each(|element| element.copy_from_slice(default));
            }
        }
    }

    /// Removes the rows `dead` (ascending) from the first `rows` rows. Moves later rows up to close the gaps. Returns
    /// the number of remaining rows.
    ///
    /// # Safety
    /// Nothing else may access the batch during the call.
    pub unsafe fn remove(&self, dead: &[u32], rows: usize) -> usize {
        let mut kept = 0;
        let mut gone = dead.iter().copied().peekable();
        for row in 0..rows {
            if gone.next_if_eq(&(row as u32)).is_some() {
                continue;
            }
            if kept != row {
                for column in 0..self.loose.len() {
                    match &self.loose[column] {
                        Some(loose) => lock(loose).swap(kept, row),
                        // SAFETY: the caller guarantees exclusive access, and the two rows differ.
                        None => unsafe { self.slot.row(column, kept).copy_from_slice(self.slot.row(column, row)) },
                    }
                }
            }
            kept += 1;
        }
        kept
    }

    /// Sets the rows `dead` to zero, including the weights of these rows.
    ///
    /// # Safety
    /// Nothing else may access the batch during the call.
    pub unsafe fn clear(&self, dead: &[u32]) {
        for (column, loose) in self.loose.iter().enumerate() {
            for &row in dead {
                match loose {
                    Some(loose) => lock(loose)[row as usize] = Lists::default(),
                    // SAFETY: the caller guarantees exclusive access.
                    None => unsafe { self.slot.row(column, row as usize) }.fill(0),
                }
            }
        }
    }

    /// Returns the columns of the first `rows` rows. The memory for variable-length values comes from the pool `spare`.
    pub fn columns(&self, fields: &[Field], rows: usize, spare: &Arc<Pool>) -> Result<Vec<Column>> {
        let mut columns = Vec::with_capacity(fields.len());
        for (column, field) in fields.iter().enumerate() {
            if let Kind::Padded(item, padding) = &field.kind {
                columns.push(self.padded(column, item, (field.name.as_str(), padding), rows, spare)?);
                continue;
            }
            columns.push(match (field.fixed(), field.item()) {
                (Some(spec), _) => Column::Tensor(Tensor::new(self.slot.clone(), column, &spec, rows)),
                (None, Some(item)) => self.gathered(column, &item, field, rows, spare)?,
                (None, None) => {
                    return Err(Error::bug(format!("field {} has neither a fixed nor a variable length", field.name)));
                }
            });
        }
        Ok(columns)
    }

    /// Number of items to which the rows of a field are padded. `None` if the number depends on the rows.
    fn width(&self, padding: &Padding) -> Option<usize> {
        match padding.to {
            PadTo::Length(length) => Some(length),
            PadTo::Bucket(multiple) => self.bucket.and_then(|width| width.checked_next_multiple_of(multiple)),
            PadTo::Longest(_) => None,
        }
    }

    fn padded(
        &self,
        column: usize,
        item: &TensorSpec,
        (name, padding): (&str, &Padding),
        rows: usize,
        spare: &Arc<Pool>,
    ) -> Result<Column> {
        let Some(loose) = &self.loose[column] else { return Err(Error::bug("a field of variable length has no rows")) };
        let mut loose = std::mem::take(&mut *lock(loose));
        loose.truncate(rows);
        let size = item.size_bytes()?.max(1);
        let longest = || loose.iter().map(|value| value.bytes.len() / size).max().unwrap_or(0);
        let width = self.width(padding).or_else(|| match padding.to {
            PadTo::Length(length) => Some(length),
            PadTo::Longest(multiple) | PadTo::Bucket(multiple) => longest().checked_next_multiple_of(multiple),
        });
        let width = width.unwrap_or(usize::MAX);
        let mask_size = usize::from(padding.mask.is_some());
        self.values.admit_padded(rows, width, size + mask_size, name)?;
        let slot = spare.take(&Arc::new(Layout::of(&[(width * size, rows), (width * mask_size, rows)])?))?;
        for (row, value) in loose.iter_mut().map(std::mem::take).enumerate() {
            // SAFETY: the slot is not shared yet.
            let (items, rest) = unsafe { slot.row(0, row) }.split_at_mut(value.bytes.len());
            items.copy_from_slice(&value.bytes);
            match &*padding.value {
                [first, others @ ..] if others.iter().all(|byte| byte == first) => rest.fill(*first),
                element => rest.chunks_exact_mut(element.len()).for_each(|to| to.copy_from_slice(element)),
            }
            // SAFETY: the slot is not shared yet.
            let (items, rest) = unsafe { slot.row(1, row) }.split_at_mut(value.bytes.len() / size * mask_size);
            items.fill(1);
            rest.fill(0);
        }
        let slot = Arc::new(slot);
        let tensor = |column: usize, dtype: DType, shape: &[usize]| {
            let shape = std::iter::once(width).chain(shape.iter().copied()).collect();
            Tensor::new(slot.clone(), column, &TensorSpec { dtype, shape }, rows)
        };
        Ok(Column::Padded {
            values: tensor(0, item.dtype, &item.shape),
            mask: padding.mask.clone().map(|name| (name, tensor(1, DType::Bool, &[]))),
        })
    }

    fn gathered(
        &self,
        column: usize,
        item: &TensorSpec,
        field: &Field,
        rows: usize,
        spare: &Arc<Pool>,
    ) -> Result<Column> {
        let kind = &field.kind;
        let Some(loose) = &self.loose[column] else { return Err(Error::bug("a field of variable length has no rows")) };
        let mut loose = std::mem::take(&mut *lock(loose));
        let size = item.size_bytes()?.max(1);
        loose.truncate(rows);
        let total: usize = loose.iter().map(|value| value.bytes.len()).sum();
        let len = |level: usize| loose.iter().map(|value| value.ends.get(level).map_or(0, Vec::len)).sum::<usize>();
        // Number of offsets at each level: the number of rows or lists at that level, plus one.
        let counts: Vec<usize> =
            std::iter::once(rows).chain((0..kind.inner_levels()).map(len)).map(|len| len + 1).collect();
        let is_bytes = kind.is_bytes();
        let columns: Vec<_> =
            std::iter::once((size, total / size)).chain(counts.iter().map(|&count| (8, count))).collect();
        let slot = spare.take(&Arc::new(Layout::of(&columns)?))?;
        let put = |level: usize, at: usize, offset: usize| {
            // SAFETY: the slot is not shared yet, and the layout has room for all offsets.
            unsafe { slot.row(1 + level, at) }.copy_from_slice(&(offset as i64).to_le_bytes());
        };
        (0..counts.len()).for_each(|level| put(level, 0, 0));
        // Number of bytes in the rows so far, and number of lists so far in each level.
        let (mut at, mut begun) = (0, vec![0; counts.len()]);
        for (row, value) in loose.iter_mut().map(std::mem::take).enumerate() {
            // SAFETY: the slot is not shared yet, and the layout has room for all values.
            unsafe { slot.bytes(0, at, value.bytes.len()) }.copy_from_slice(&value.bytes);
            let items = at / if is_bytes { 1 } else { size };
            for (level, ends) in (1..counts.len()).zip(&value.ends) {
                let base = begun.get(level + 1).copied().unwrap_or(items);
                for (list, end) in ends.iter().enumerate() {
                    put(level, begun[level] + list + 1, base + end);
                }
            }
            for (level, ends) in (1..counts.len()).zip(&value.ends) {
                begun[level] += ends.len();
            }
            at += value.bytes.len();
            put(0, row + 1, begun.get(1).copied().unwrap_or(at / size));
        }
        let slot = Arc::new(slot);
        let offset = TensorSpec { dtype: DType::I64, shape: Vec::new() };
        Ok(Column::Ragged {
            values: Tensor::new(slot.clone(), 0, item, total / size),
            offsets: (1..).zip(counts).map(|(at, count)| Tensor::new(slot.clone(), at, &offset, count)).collect(),
            is_bytes,
            is_text: matches!(kind, Kind::Text(_)) || field.text.is_some(),
        })
    }
}

/// Converts lists of byte strings to valid UTF-8. `Replace` can make a string up to three times as long.
fn as_texts(mut lists: Lists, errors: TextErrors) -> Result<Lists, String> {
    let Some(ends) = lists.ends.last_mut() else { return Ok(lists) };
    let (mut texts, mut from) = (Vec::with_capacity(lists.bytes.len()), 0);
    for end in ends {
        let bytes = lists.bytes.get(from..*end).unwrap_or_default();
        from = *end;
        texts.extend(as_text(Cow::Borrowed(bytes), errors)?);
        *end = texts.len();
    }
    lists.bytes = texts;
    Ok(lists)
}

/// Returns `bytes` as valid UTF-8. The error states the first byte that is not valid.
fn as_text(bytes: Cow<'_, [u8]>, errors: TextErrors) -> Result<Vec<u8>, String> {
    let Err(error) = std::str::from_utf8(&bytes) else { return Ok(bytes.into_owned()) };
    match errors {
        TextErrors::Strict => {
            let at = error.valid_up_to();
            let (shown, all) = (with_separators(at as u64), with_separators(bytes.len() as u64));
            Err(format!("byte {shown} of {all} is {:#04x}", bytes.get(at).copied().unwrap_or_default()))
        }
        TextErrors::Replace => Ok(String::from_utf8_lossy(&bytes).into_owned().into_bytes()),
        TextErrors::Ignore => Ok(bytes.utf8_chunks().map(|chunk| chunk.valid()).collect::<String>().into_bytes()),
    }
}
