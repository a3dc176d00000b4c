// SPDX-License-Identifier: Apache-2.0
//! Tests listings against a simple model, which sorts, filters, groups and truncates all keys.

use proptest::prelude::*;

use super::*;
use crate::object_metadata::Fact;

fn filled(keys: &[String]) -> (tempfile::TempDir, Folder) {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    for key in keys {
        put(&folder, key);
    }
    (dir, folder)
}

fn put(folder: &Folder, key: &str) {
    let stamp = Stamp { inode: 0, modified_ns: 0, size: 0 };
    let fact = Fact { stamp, etag: Some("e".into()), ..Fact::default() };
    folder.commit::<io::Error>(key, folder.temp().unwrap(), fact, |_| Ok(())).unwrap();
}

fn all_pages(folder: &Folder, prefix: &str, delimiter: Option<&str>, most: usize) -> Vec<String> {
    let mut query = Query { prefix: prefix.into(), delimiter: delimiter.map(Into::into), most, ..Query::default() };
    let mut names = Vec::new();
    for _ in 0..1000 {
        let (items, more) = page(folder, &query).unwrap();
        assert!(items.len() <= most);
        names.extend(items.iter().map(|item| item.name().to_owned()));
        let Some(last) = items.last().filter(|_| more) else { return names };
        query.after = last.name().to_owned();
        query.done = matches!(last, Item::Prefix(_)).then(|| last.name().to_owned());
    }
    panic!("the listing does not end");
}

fn model(keys: &[String], prefix: &str, delimiter: Option<&str>) -> Vec<String> {
    let mut names: Vec<String> = keys
        .iter()
        .filter(|key| key.starts_with(prefix))
        .map(|key| match delimiter.and_then(|d| key[prefix.len()..].find(d).map(|at| at + d.len())) {
            Some(end) => key[..prefix.len() + end].to_owned(),
            None => key.clone(),
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn prop_pages_equal_the_sorted_model(
        keys in prop::collection::btree_set("[ab./-]{1,7}", 1..24),
        prefix in "[ab/]{0,2}",
        delimiter in prop::sample::select(vec![None, Some("/"), Some("-"), Some("/a")]),
        most in 1_usize..5,
    ) {
        let keys: Vec<String> = keys.into_iter().collect();
        let (_dir, folder) = filled(&keys);
        prop_assert_eq!(all_pages(&folder, &prefix, delimiter, most), model(&keys, &prefix, delimiter));
    }
}

#[test]
fn page_empty_folder_makes_no_common_prefix() {
    let (dir, folder) = filled(&["a/b".into()]);
    std::fs::create_dir_all(dir.path().join("empty/er")).unwrap();
    assert_eq!(all_pages(&folder, "", Some("/"), 10), ["a/"]);
}

#[test]
fn page_after_a_change_of_the_folder_shows_it() {
    let (dir, folder) = filled(&["a".into()]);
    for round in 0..20 {
        std::fs::write(dir.path().join(format!("n{round:02}")), b"").unwrap();
        assert_eq!(all_pages(&folder, "", None, 100).len(), round + 2);
    }
}

#[test]
fn page_link_out_of_the_folder_is_not_listed_and_one_within_is() {
    let (dir, folder) = filled(&["a".into()]);
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("out")).unwrap();
    std::os::unix::fs::symlink("a", dir.path().join("in")).unwrap();
    assert_eq!(all_pages(&folder, "", None, 10), ["a", "in"]);
    assert!(folder.find("out").unwrap().is_none() && folder.find("in").unwrap().is_some());
}

#[test]
fn remove_last_object_of_a_folder_frees_its_name() {
    let (dir, folder) = filled(&["fd/x/y".into()]);
    folder.remove::<io::Error>("fd/x/y", |_| Ok(())).unwrap();
    assert!(!dir.path().join("fd").exists());
    put(&folder, "fd");
    put(&folder, "fd/x");
    assert_eq!(all_pages(&folder, "", None, 10), ["fd", "fd/x"]);
    assert!(dir.path().join("fd").is_file());
    folder.remove::<io::Error>("fd", |_| Ok(())).unwrap();
    assert_eq!(all_pages(&folder, "", None, 10), ["fd/x"]);
}
