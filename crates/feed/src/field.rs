// SPDX-License-Identifier: Apache-2.0
//! Fields of a batch. A field has a name, a kind, and the name of the record value from which it is read.
//!
//! Owns the JSON document by which Python describes the fields. Reads no data.

use penstock_record::audio::AudioSpec;
use penstock_record::image::{BoxesSpec, ImageSpec};
use penstock_types::{DType, Error, Result, TensorSpec};
use serde::{Deserialize, Serialize};

use super::annotation_kind::{Annotation, Follows};
use super::audio_field_json::AudioDocument;
use super::image_field_json::{AnnotationDocument, ImageDocument};

/// Field of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Name of the field in batches.
    pub name: String,
    /// Names of the record values from which the field can be read; the first value that exists is used. If the list is
    /// empty, the value with the field's own name is used.
    pub of: Vec<String>,
    /// Kind of the field, which determines how the value is converted.
    pub kind: Kind,
    /// Default for a record without the value. For a tensor or an image, the default is one little-endian element,
    /// which is repeated. For bytes, it is the content. For lists, it is empty.
    pub default: Option<Box<[u8]>>,
    /// The field that this field follows, if it is an annotation of an image or a property of a recording.
    pub follows: Option<Follows>,
    /// For lists of texts: how bytes that are not UTF-8 are treated.
    pub text: Option<TextErrors>,
    /// For audio: how the recording is decoded to the field's kind (a tensor, or items of a list).
    pub audio: Option<AudioSpec>,
}

/// Kind of a field: how a value of a record is converted.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A tensor whose element type and shape are the same in every sample.
    Tensor(TensorSpec),
    /// A variable number of items per sample. Each item has this type and shape. Delivered as values and offsets.
    Ragged(TensorSpec),
    /// Like `Ragged`, but delivered as one array, in which every row is padded to the same number of items.
    Padded(TensorSpec, Padding),
    /// The stored bytes.
    Bytes,
    /// Text: the stored bytes as UTF-8. [`TextErrors`] states how bytes that are not UTF-8 are treated.
    Text(TextErrors),
    /// A variable number of byte strings per sample.
    BytesList,
    /// Lists of lists, with a variable number of items at each level.
    Nested {
        /// Element type and shape of an item of the innermost lists; `None` if the items are byte strings.
        item: Option<TensorSpec>,
        /// Number of levels of lists, at least 2.
        depth: usize,
    },
    /// A boolean: true if the sample has the value.
    Present,
    /// The bytes of the whole record, as the format stores them.
    Record,
    /// An image that is decoded, cropped and resized.
    Image(ImageSpec),
}

/// How the rows of a batch are padded to a common number of items.
#[derive(Debug, Clone, PartialEq)]
pub struct Padding {
    /// Number of items per row.
    pub to: PadTo,
    /// One little-endian element, with which rows are padded.
    pub value: Box<[u8]>,
    /// Name of a second column of type bool: true for items of the sample, false for padding.
    pub mask: Option<String>,
    /// True to truncate a sample that has too many items for its row; false to return an error.
    pub truncates: bool,
}

/// Number of items to which rows are padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PadTo {
    /// Exactly this number.
    Length(usize),
    /// The number of items in the batch's longest row on this rank, rounded up to a multiple of this number.
    Longest(usize),
    /// The maximum length of the batch's bucket, rounded up to a multiple of this number. If the batch has no bucket,
    /// the same as `Longest`.
    Bucket(usize),
}

/// Maximum number of levels of nested lists.
const MAX_DEPTH: usize = 8;

impl Kind {
    /// Number of levels of offsets in addition to the offsets of the rows.
    pub(crate) fn inner_levels(&self) -> usize {
        match self {
            Self::Tensor(_) | Self::Image(_) | Self::Present | Self::Bytes | Self::Text(_) | Self::Record => 0,
            Self::Ragged(_) | Self::Padded(..) => 0,
            Self::BytesList => 1,
            Self::Nested { item, depth } => depth - usize::from(item.is_some()),
        }
    }

    /// True for a field of byte strings.
    pub(crate) fn is_bytes(&self) -> bool {
        matches!(self, Self::Bytes | Self::Text(_) | Self::BytesList | Self::Record | Self::Nested { item: None, .. })
    }
}

/// How bytes that are not UTF-8 are treated in a text field. The names are those of Python's `bytes.decode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextErrors {
    /// The record counts as corrupt.
    #[default]
    Strict,
    /// Each invalid sequence is replaced by U+FFFD.
    Replace,
    /// Invalid bytes are left out.
    Ignore,
}

/// JSON document of a field, as Python writes it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldDocument {
    name: String,
    kind: String,
    #[serde(default)]
    of: Vec<String>,
    #[serde(default)]
    dtype: Option<String>,
    #[serde(default)]
    shape: Vec<usize>,
    /// Number of levels of nested lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    depth: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<ImageDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    audio: Option<AudioDocument>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    padding: Option<PaddingDocument>,
    /// Only for texts and lists of texts: how bytes that are not UTF-8 are treated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    errors: Option<TextErrors>,
    /// Bytes of the default value, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    default: Option<String>,
    /// Name of the field that an annotation follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    follows: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    annotation: Option<AnnotationDocument>,
}

/// JSON document of a field's padding, as Python writes it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PaddingDocument {
    to: PadTo,
    /// Bytes of the element for padding, in hexadecimal.
    value: String,
    mask: Option<String>,
    truncates: bool,
}

impl PaddingDocument {
    fn padding(&self, name: &str, item: &TensorSpec) -> Result<Padding> {
        let value = bytes_of(&self.value).filter(|bytes| bytes.len() == item.dtype.size());
        let value =
            value.ok_or_else(|| Error::config("fields", format!("the padding of `{name}` is not one element")))?;
        if let PadTo::Longest(0) | PadTo::Bucket(0) = self.to {
            return Err(Error::config("fields", format!("`{name}` cannot be padded to a multiple of 0")));
        }
        Ok(Padding { to: self.to, value, mask: self.mask.clone(), truncates: self.truncates })
    }

    fn of(padding: &Padding) -> Self {
        let Padding { to, value, mask, truncates } = padding.clone();
        Self { to, value: hexadecimal(&value), mask, truncates }
    }
}

impl Field {
    /// Creates a field of tensors of fixed shape. The field is read from the value of the same name.
    pub fn tensor(name: &str, dtype: DType, shape: &[usize]) -> Self {
        Self::of_kind(name, Kind::Tensor(TensorSpec { dtype, shape: shape.to_vec() }))
    }

    /// Creates a field of this kind without a default. The field is read from the value of the same name.
    pub fn of_kind(name: &str, kind: Kind) -> Self {
        Self { name: name.to_owned(), of: Vec::new(), kind, default: None, follows: None, text: None, audio: None }
    }

    /// Element type and shape, if they are the same in every sample.
    pub fn fixed(&self) -> Option<TensorSpec> {
        match &self.kind {
            Kind::Tensor(spec) => Some(spec.clone()),
            Kind::Image(spec) => Some(spec.tensor()),
            Kind::Present => Some(TensorSpec { dtype: DType::Bool, shape: Vec::new() }),
            Kind::Ragged(_)
            | Kind::Padded(..)
            | Kind::Bytes
            | Kind::Text(_)
            | Kind::BytesList
            | Kind::Nested { .. }
            | Kind::Record => None,
        }
    }

    /// Element type and shape of an item; `None` unless the field has variable length.
    pub fn item(&self) -> Option<TensorSpec> {
        match &self.kind {
            Kind::Tensor(_) | Kind::Image(_) | Kind::Present => None,
            Kind::Ragged(spec) | Kind::Padded(spec, _) | Kind::Nested { item: Some(spec), .. } => Some(spec.clone()),
            Kind::Bytes | Kind::Text(_) | Kind::BytesList | Kind::Record | Kind::Nested { item: None, .. } => {
                Some(TensorSpec { dtype: DType::U8, shape: Vec::new() })
            }
        }
    }

    /// Names of the values from which the field may be read.
    pub fn parts(&self) -> &[String] {
        if self.of.is_empty() { std::slice::from_ref(&self.name) } else { &self.of }
    }

    /// Parses fields from the JSON that Python writes.
    pub fn from_json(json: &str) -> Result<Vec<Self>> {
        let document: Vec<FieldDocument> = serde_json::from_str(json)
            .map_err(|error| Error::config("fields", format!("cannot be parsed: {error}")))?;
        let mut fields = Vec::with_capacity(document.len());
        let annotations: Vec<_> = document
            .iter()
            .map(|field| (field.follows.clone(), field.annotation.clone(), field.dtype.clone()))
            .collect();
        for field in document {
            fields.push(Self::from_document(field)?);
        }
        for (at, annotation) in annotations.into_iter().enumerate() {
            let (Some(name), Some(annotation), dtype) = annotation else { continue };
            let wrong = |problem: &str| Error::config("fields", format!("`{}` {problem} `{name}`", fields[at].name));
            let dtype = dtype.as_deref().unwrap_or("float32").parse()?;
            let followed =
                fields.iter().position(|field| field.name == name).ok_or_else(|| wrong("follows a missing field"))?;
            let annotation = annotation.annotation(dtype)?;
            let is_right = match (&annotation, &fields[followed].kind) {
                (Annotation::Mask(_) | Annotation::Boxes(_) | Annotation::Keypoints(_), Kind::Image(_)) => true,
                (Annotation::Keypoints(_) | Annotation::Items, Kind::Ragged(_) | Kind::Padded(..)) => followed != at,
                // The fields of a record are decoded in order, so the audio field must come first.
                (Annotation::Audio(_), _) => fields[followed].audio.is_some() && followed < at,
                _ => false,
            };
            if !is_right {
                return Err(wrong("cannot follow"));
            }
            fields[at].follows = Some(Follows { field: followed, annotation });
        }
        let is_boxes =
            |at: usize| matches!(&fields[at].follows, Some(Follows { annotation: Annotation::Boxes(_), .. }));
        let orphan = fields.iter().find(|field| {
            field.follows.as_ref().is_some_and(|follows| {
                fields[follows.field].audio.is_none()
                    && !matches!(fields[follows.field].kind, Kind::Image(_))
                    && !is_boxes(follows.field)
            })
        });
        if let Some(field) = orphan {
            return Err(Error::config("fields", format!("`{}` follows a field without boxes", field.name)));
        }
        let mut names: Vec<&str> = fields.iter().flat_map(Self::columns).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::config("fields", format!("two columns of a batch have the name `{}`", pair[0]))),
            None => Ok(fields),
        }
    }

    /// True if the rows are padded to the maximum length of their batch's bucket.
    pub fn is_padded_to_bucket(&self) -> bool {
        matches!(&self.kind, Kind::Padded(_, Padding { to: PadTo::Bucket(_), .. }))
    }

    /// Names of the field's columns in a batch: the field's own name, and the name of its mask.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        let mask = match &self.kind {
            Kind::Padded(_, padding) => padding.mask.as_deref(),
            _ => None,
        };
        std::iter::once(self.name.as_str()).chain(mask)
    }

    /// Names of the values to read, in groups. Of each group, one value is used.
    pub(crate) fn part_groups(&self) -> std::slice::Chunks<'_, String> {
        let is_split = matches!(
            &self.follows,
            Some(Follows { annotation: Annotation::Boxes(BoxesSpec { is_split: true, .. }), .. })
        );
        self.parts().chunks(if is_split { 1 } else { self.parts().len() })
    }

    fn from_document(document: FieldDocument) -> Result<Self> {
        let dtype = document.dtype.as_deref().map(str::parse::<DType>).transpose()?;
        let spec = || {
            let dtype = dtype.ok_or_else(|| Error::config("fields", format!("`{}` has no dtype", document.name)))?;
            let spec = TensorSpec { dtype, shape: document.shape.clone() };
            spec.size_bytes()?;
            Ok::<_, Error>(spec)
        };
        let kind = match document.kind.as_str() {
            "tensor" => Kind::Tensor(spec()?),
            "ragged" => match &document.padding {
                None => Kind::Ragged(spec()?),
                Some(padding) => {
                    let spec = spec()?;
                    let padding = padding.padding(&document.name, &spec)?;
                    Kind::Padded(spec, padding)
                }
            },
            "bytes" => Kind::Bytes,
            "text" => Kind::Text(document.errors.unwrap_or_default()),
            "bytes_list" => Kind::BytesList,
            "nested" => match document.depth {
                Some(depth @ 2..=MAX_DEPTH) => Kind::Nested { item: dtype.map(|_| spec()).transpose()?, depth },
                depth => {
                    let depth = depth.unwrap_or(0);
                    let problem =
                        format!("`{}` has {depth} levels of lists (2 to {MAX_DEPTH} are supported)", document.name);
                    return Err(Error::config("fields", problem));
                }
            },
            "present" => Kind::Present,
            "record" => Kind::Record,
            "image" => {
                let image = document.image.as_ref();
                let image =
                    image.ok_or_else(|| Error::config("fields", format!("`{}` has no image", document.name)))?;
                Kind::Image(image.spec(dtype.unwrap_or(DType::U8))?)
            }
            other => {
                return Err(Error::config("fields", format!("`{}` has an unknown kind (`{other}`)", document.name)));
            }
        };
        let default = document.default.as_deref().map(|text| default_of(&document.name, &kind, text)).transpose()?;
        let audio = document.audio.as_ref().map(|audio| audio_spec(audio, &document.name, &kind)).transpose()?;
        let text = document.errors.filter(|_| matches!(kind, Kind::BytesList | Kind::Nested { item: None, .. }));
        Ok(Self { name: document.name, of: document.of, kind, default, follows: None, text, audio })
    }

    /// Serialises fields as JSON that [`Field::from_json`] can parse.
    pub fn to_json(fields: &[Self]) -> Result<String> {
        let document: Vec<FieldDocument> = fields.iter().map(|field| field.document(fields)).collect();
        serde_json::to_string(&document).map_err(|error| Error::bug(format!("fields cannot be serialised: {error}")))
    }

    fn document(&self, fields: &[Self]) -> FieldDocument {
        let (mut depth, mut image) = (None, None);
        let (kind, spec) = match &self.kind {
            Kind::Tensor(spec) => ("tensor", Some(spec.clone())),
            Kind::Ragged(spec) | Kind::Padded(spec, _) => ("ragged", Some(spec.clone())),
            Kind::Bytes => ("bytes", None),
            Kind::Text(_) => ("text", None),
            Kind::BytesList => ("bytes_list", None),
            Kind::Present => ("present", None),
            Kind::Record => ("record", None),
            Kind::Nested { item, depth: levels } => {
                depth = Some(*levels);
                ("nested", item.clone())
            }
            Kind::Image(spec) => {
                image = Some(ImageDocument::of(spec));
                ("image", Some(spec.tensor()))
            }
        };
        FieldDocument {
            name: self.name.clone(),
            kind: kind.to_owned(),
            of: self.of.clone(),
            dtype: spec.as_ref().map(|spec| spec.dtype.name().to_owned()),
            shape: spec.map(|spec| spec.shape).unwrap_or_default(),
            depth,
            image,
            audio: self.audio.as_ref().map(AudioDocument::of),
            padding: match &self.kind {
                Kind::Padded(_, padding) => Some(PaddingDocument::of(padding)),
                _ => None,
            },
            errors: if let Kind::Text(errors) = &self.kind { Some(*errors) } else { self.text },
            default: self.default.as_deref().map(hexadecimal),
            follows: self.follows.as_ref().map(|follows| fields[follows.field].name.clone()),
            annotation: self.follows.as_ref().map(|follows| AnnotationDocument::of(&follows.annotation)),
        }
    }
}

/// Settings of an audio field. Returns an error if these settings do not match the shape of the field's kind.
fn audio_spec(document: &AudioDocument, name: &str, kind: &Kind) -> Result<AudioSpec> {
    let (Kind::Tensor(spec) | Kind::Ragged(spec) | Kind::Padded(spec, _)) = kind else {
        return Err(Error::config("fields", format!("`{name}` cannot be audio")));
    };
    let audio = document.spec(spec.dtype)?;
    let samples = audio.clip.map(|clip| clip.samples);
    let channels = Some(audio.channels).filter(|channels| *channels > 1);
    let shape: Vec<usize> = channels.into_iter().chain(samples).filter(|_| !audio.measures).collect();
    if spec.shape != shape || (samples.is_some() || audio.measures) != matches!(kind, Kind::Tensor(_)) {
        return Err(Error::config("fields", format!("`{name}` is audio of shape {shape:?}, not {:?}", spec.shape)));
    }
    Ok(audio)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(hexadecimal: &str) -> Option<Box<[u8]>> {
    let digits = hexadecimal.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.1.is_empty().then(|| digits.0.iter().map(byte).collect())?
}

/// Parses the hexadecimal default `text`: one element for a tensor or an image, any bytes for other kinds.
fn default_of(name: &str, kind: &Kind, text: &str) -> Result<Box<[u8]>> {
    let fits = |bytes: &[u8]| match kind {
        Kind::Tensor(spec) => bytes.len() == spec.dtype.size(),
        Kind::Image(spec) => bytes.len() == spec.dtype.size(),
        Kind::Present => bytes == [0],
        Kind::Bytes => true,
        Kind::Ragged(_) | Kind::Padded(..) | Kind::BytesList | Kind::Nested { .. } => bytes.is_empty(),
        Kind::Record => false,
        Kind::Text(_) => std::str::from_utf8(bytes).is_ok(),
    };
    bytes_of(text)
        .filter(|bytes| fits(bytes))
        .ok_or_else(|| Error::config("fields", format!("the default of `{name}` does not match its kind")))
}

#[cfg(test)]
mod tests {
    use penstock_record::image::{Crop, MaskSpec};

    use super::*;

    #[test]
    fn fields_round_trip_and_refuse_what_they_do_not_know() {
        let fields = vec![
            Field::tensor("x", DType::I16, &[3, 2]),
            Field { default: Some([0xff, 1].into()), ..Field::tensor("missing", DType::I16, &[]) },
            Field {
                of: vec!["ids".into(), "input_ids".into()],
                ..Field::of_kind("tokens", Kind::Ragged(TensorSpec { dtype: DType::I64, shape: vec![] }))
            },
            Field::of_kind(
                "padded",
                Kind::Padded(
                    TensorSpec { dtype: DType::I32, shape: vec![] },
                    Padding {
                        to: PadTo::Longest(8),
                        value: [9, 0, 0, 0].into(),
                        mask: Some("m".into()),
                        truncates: true,
                    },
                ),
            ),
            Field { default: Some([].into()), ..Field::of_kind("raw", Kind::Bytes) },
            Field {
                default: Some([].into()),
                text: Some(TextErrors::Ignore),
                ..Field::of_kind("words", Kind::BytesList)
            },
            Field::of_kind(
                "boxes",
                Kind::Nested { item: Some(TensorSpec { dtype: DType::F32, shape: vec![4] }), depth: 2 },
            ),
            Field::of_kind("documents", Kind::Nested { item: None, depth: 3 }),
            Field { default: Some([0].into()), ..Field::of_kind("has_x", Kind::Present) },
            Field::of_kind("record", Kind::Record),
            Field { default: Some([0xc3, 0xa9].into()), ..Field::of_kind("text", Kind::Text(TextErrors::Replace)) },
            Field {
                of: vec!["jpg".into()],
                ..Field::of_kind(
                    "image",
                    Kind::Image(ImageSpec { crop: Crop::RANDOM, flip: 0.5, ..ImageSpec::new(224, 224) }),
                )
            },
            Field {
                follows: Some(Follows {
                    field: 11,
                    annotation: Annotation::Mask(MaskSpec { dtype: DType::U8, fill: 255, max_pixels: 9 }),
                }),
                ..Field::tensor("mask", DType::U8, &[224, 224])
            },
        ];
        assert_eq!(Field::from_json(&Field::to_json(&fields).unwrap()).unwrap(), fields);
        assert_eq!((fields[0].parts(), fields[2].parts().len()), (&["x".to_owned()][..], 2));
        let int16 =
            |default: &str| format!(r#"[{{"name":"x","kind":"tensor","dtype":"int16","default":"{default}"}}]"#);
        for bad in [
            r#"[{"name":"x","kind":"tensor"}]"#,
            r#"[{"name":"x","kind":"sound"}]"#,
            r#"[{"name":"x","kind":"text","errors":"guess"}]"#,
            r#"[{"name":"x","kind":"text","default":"ff"}]"#,
            r#"[{"name":"x","kind":"ragged","dtype":"int16","default":"0000"}]"#,
            r#"[{"name":"x","kind":"nested","dtype":"int16"}]"#,
            r#"[{"name":"x","kind":"nested","depth":9}]"#,
            r#"[{"name":"x","kind":"present","default":"01"}]"#,
            "{}",
            &int16("00"),
            &int16("00000"),
            &int16("+1zz"),
        ] {
            assert_eq!(Field::from_json(bad).unwrap_err().code(), "config");
        }
    }
}
