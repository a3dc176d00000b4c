// SPDX-License-Identifier: Apache-2.0
//! Compares two manifests by logical name. Reads only the metadata in the manifests, and opens no object.
//!
//! A staged copy also records the source of each file, so a copy can be compared with its compressed source.

use penstock_codec::Codec;
use penstock_store::Version;
use penstock_types::Digest;
use serde::Serialize;

use crate::manifest::{Entry, Manifest};

/// An object that differs between the two manifests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Logical name of the object, with control characters escaped.
    pub name: String,
    /// Difference between the two entries, with both values.
    pub reason: String,
}

/// Differences between two manifests, and the number of equal objects for each kind of evidence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Objects that only the second manifest lists.
    pub added: Vec<String>,
    /// Objects that only the first manifest lists.
    pub removed: Vec<String>,
    /// Objects that both manifests list, but that differ.
    pub changed: Vec<Change>,
    /// Number of objects that are equal in both manifests.
    pub same: u64,
    /// Number of the objects in `same` that have an equal digest.
    pub same_by_digest: u64,
    /// Number of the objects in `same` that have the same URL and the same version.
    pub same_by_version: u64,
    /// Number of the objects in `same` that have equal sizes, but no digest or version to compare.
    pub same_by_size: u64,
    /// Number of the objects in `same` of which only the names can be compared. One of the two objects is compressed,
    /// and neither entry records the bytes of the other form.
    pub same_by_name: u64,
}

impl Difference {
    /// True if nothing differs.
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// A form in which an object's bytes are known: as stored in this dataset, or as stored at its source.
struct Form<'a> {
    place: Option<String>,
    codec: Codec,
    size: u64,
    version: Option<&'a Version>,
    digests: &'a [Digest],
}

fn forms<'a>(manifest: &Manifest, entry: &'a Entry) -> Vec<Form<'a>> {
    let place = |folder: &str, key| Some(format!("{folder}{key}"));
    let mut forms = vec![Form {
        place: place(&manifest.url, &entry.key),
        codec: entry.codec,
        size: entry.size,
        version: entry.version.as_ref(),
        digests: &entry.digests,
    }];
    if let Some(origin) = &entry.origin {
        forms.push(Form {
            place: manifest.source.as_deref().and_then(|source| place(source, &origin.key)),
            codec: match (origin.decoded, origin.encoded) {
                (Codec::None, Codec::None) => entry.codec,
                (Codec::None, _) => Codec::of_name(origin.key.as_bytes()),
                (decoded, _) => decoded,
            },
            size: origin.size,
            version: origin.version.as_ref(),
            digests: &origin.digests,
        });
    }
    forms
}

enum Verdict {
    Digest,
    Version,
    Size,
    Name,
    Differs(String),
}

/// Compares two objects by the strongest available evidence: digests, then versions of the same stored object, then
/// sizes.
fn compare(a: &[Form<'_>], b: &[Form<'_>]) -> Verdict {
    let pairs = || a.iter().flat_map(|a| b.iter().map(move |b| (a, b))).filter(|(a, b)| a.codec == b.codec);
    let mut differs = None;
    for (a, b) in pairs() {
        for have in a.digests {
            match b.digests.iter().find(|other| other.algorithm == have.algorithm) {
                Some(other) if other == have => return Verdict::Digest,
                Some(other) => differs = Some(format!("{have}, then {other}")),
                None => {}
            }
        }
    }
    if let Some(why) = differs {
        return Verdict::Differs(why);
    }
    for (a, b) in pairs().filter(|(a, b)| a.place.is_some() && a.place == b.place) {
        if let (Some(old), Some(new)) = (a.version, b.version) {
            return match old == new {
                true => Verdict::Version,
                false => Verdict::Differs(format!("version {old}, then {new}")),
            };
        }
    }
    let mut met = false;
    for (a, b) in pairs() {
        met = true;
        if a.size != b.size {
            return Verdict::Differs(format!("{} bytes, then {}", a.size, b.size));
        }
    }
    if met { Verdict::Size } else { Verdict::Name }
}

/// Compares two manifests.
pub fn diff(a: &Manifest, b: &Manifest) -> Difference {
    let mut found = Difference::default();
    let (mut old, mut new) = (Groups(&a.objects), Groups(&b.objects));
    let (mut left, mut right) = (old.next(), new.next());
    let text = |entry: &Entry| entry.key.to_string();
    loop {
        let order = match (&left, &right) {
            (None, None) => return found,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(left), Some(right)) => left[0].logical_name().cmp(right[0].logical_name()),
        };
        let (mut olds, mut news): (Vec<&Entry>, Vec<&Entry>) = (Vec::new(), Vec::new());
        if order.is_le() {
            olds.extend(left.take().unwrap_or_default());
            left = old.next();
        }
        if order.is_ge() {
            news.extend(right.take().unwrap_or_default());
            right = new.next();
        }
        // `a` and `a.gz` in one folder have the same logical name, so entries with equal keys are paired first.
        let mut pairs = Vec::new();
        if olds.len() == 1 && news.len() == 1 {
            pairs.extend(olds.pop().zip(news.pop()));
        } else {
            olds.retain(|entry| match news.iter().position(|other| other.key == entry.key) {
                Some(at) => {
                    pairs.push((*entry, news.remove(at)));
                    false
                }
                None => true,
            });
        }
        found.removed.extend(olds.into_iter().map(text));
        found.added.extend(news.into_iter().map(text));
        for (old, new) in pairs {
            let counter = match compare(&forms(a, old), &forms(b, new)) {
                Verdict::Digest => &mut found.same_by_digest,
                Verdict::Version => &mut found.same_by_version,
                Verdict::Size => &mut found.same_by_size,
                Verdict::Name => &mut found.same_by_name,
                Verdict::Differs(why) => {
                    found.changed.push(Change { name: text(new), reason: why });
                    continue;
                }
            };
            *counter += 1;
            found.same += 1;
        }
    }
}

/// Iterator over runs of objects with the same logical name; a manifest stores such objects next to each other.
struct Groups<'a>(&'a [Entry]);

impl<'a> Iterator for Groups<'a> {
    type Item = &'a [Entry];

    fn next(&mut self) -> Option<&'a [Entry]> {
        let first = self.0.first()?;
        let end = self.0.iter().take_while(|entry| entry.logical_name() == first.logical_name()).count();
        let (group, rest) = self.0.split_at(end);
        self.0 = rest;
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use penstock_types::Key;

    use super::*;
    use crate::manifest::Origin;

    fn entry(name: &str, size: u64, digest: Option<&str>) -> Entry {
        let digests = digest.into_iter().map(|text| text.parse().unwrap()).collect();
        Entry { digests, ..Entry::new(Key::from(name), size) }
    }

    fn manifest(objects: Vec<Entry>) -> Manifest {
        Manifest::new("s3://b/".to_owned(), objects)
    }

    #[test]
    fn diff_sorts_names_into_added_removed_changed_and_same() {
        let a = manifest(vec![entry("a", 1, None), entry("b", 2, None), entry("c", 3, None)]);
        let b = manifest(vec![entry("b", 2, None), entry("c", 4, None), entry("d", 5, None)]);
        let found = diff(&a, &b);
        assert_eq!((found.added, found.removed), (vec!["d".to_owned()], vec!["a".to_owned()]));
        assert_eq!((found.changed.len(), found.changed[0].name.as_str()), (1, "c"));
        assert_eq!((found.same, found.same_by_size), (1, 1));
        assert!(diff(&a, &a).is_same());
    }

    #[test]
    fn diff_digests_outweigh_sizes_and_versions() {
        let mut old = entry("x", 1, Some("crc32c:00000001"));
        let mut new = entry("x", 1, Some("crc32c:00000002"));
        (old.version, new.version) = (Some(Version("v".into())), Some(Version("v".into())));
        assert_eq!(diff(&manifest(vec![old.clone()]), &manifest(vec![new.clone()])).changed.len(), 1);
        (old.digests, new.digests) = (Vec::new(), Vec::new());
        assert_eq!(diff(&manifest(vec![old.clone()]), &manifest(vec![new.clone()])).same_by_version, 1);
        new.version = Some(Version("w".into()));
        assert_eq!(diff(&manifest(vec![old]), &manifest(vec![new])).changed.len(), 1);
    }

    #[test]
    fn diff_of_an_inflated_copy_and_its_source_compares_what_it_was_made_from() {
        let mut stored = entry("x.gz", 10, None);
        stored.version = Some(Version("v".into()));
        let mut copy = entry("x", 99, Some("crc32c:00000001"));
        copy.origin = Some(Box::new(Origin { decoded: Codec::Gzip, codec_source: None, ..Origin::of(&stored) }));
        let mut staged = Manifest::new("file:///d/".to_owned(), vec![copy]);
        staged.source = Some("s3://b/".to_owned());
        assert_eq!(diff(&manifest(vec![stored.clone()]), &staged).same_by_version, 1);
        stored.version = Some(Version("w".into()));
        assert_eq!(diff(&manifest(vec![stored.clone()]), &staged).changed.len(), 1);
        stored.version = None;
        stored.size = 11;
        assert_eq!(diff(&manifest(vec![stored]), &staged).changed.len(), 1);
        assert_eq!(diff(&manifest(vec![entry("x.zst", 3, None)]), &staged).same_by_name, 1);
    }

    #[test]
    fn diff_of_names_that_share_a_logical_name_pairs_equal_keys() {
        let a = manifest(vec![entry("x", 1, None), entry("x.gz", 2, None)]);
        let b = manifest(vec![entry("x.gz", 2, None)]);
        let found = diff(&a, &b);
        assert_eq!((found.removed, found.same), (vec!["x".to_owned()], 1));
    }
}
