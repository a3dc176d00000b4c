// SPDX-License-Identifier: Apache-2.0
//! Tests behaviour that only a real folder has: links, permissions, and files that change during a read.

#![allow(clippy::disallowed_methods, reason = "tests write and remove files of their own")]

use std::os::unix::fs::symlink;
use std::path::Path;

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_store::{Local, ObjectRef, PutOptions, Store};
use penstock_types::{ByteRange, Deadline, Key, Result};

async fn put(store: &Local, key: &str) -> Result<()> {
    let parts = vec![Bytes::from_static(b"bytes")];
    store.put(&Key::from(key), parts, &PutOptions::default(), Deadline::NEVER).await.map(|_| ())
}

async fn get(store: &Local, key: &str) -> Result<Vec<u8>> {
    let object = ObjectRef::current(Key::from(key));
    let got = store.get_ranges(&object, &[ByteRange::WHOLE], Deadline::NEVER).await?;
    got.chunks.try_fold(Vec::new(), |all, chunk| async move { Ok([&all[..], &chunk.bytes].concat()) }).await
}

async fn list(store: &Local) -> Result<Vec<String>> {
    store.list(&Key::default(), None, Deadline::NEVER).map_ok(|meta| meta.key.to_string()).try_collect().await
}

#[tokio::test]
async fn test_planted_link_out_of_the_folder_is_neither_read_nor_written_through() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(outside.path().join("secret"), b"secret").unwrap();
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), dir.path().join("file")).unwrap();
    let store = Local::new(dir.path()).unwrap();
    for key in ["out/secret", "out/new", "out/deep/new"] {
        assert_eq!(put(&store, key).await.unwrap_err().code(), "key", "{key}");
        assert_eq!(get(&store, key).await.unwrap_err().code(), "system", "{key}");
        assert_eq!(store.delete(&[Key::from(key)], Deadline::NEVER).await.unwrap_err().code(), "key", "{key}");
    }
    assert_eq!(get(&store, "file").await.unwrap_err().code(), "system");
    // A write to the key of a link replaces the link, not its target.
    put(&store, "file").await.unwrap();
    assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    // A listing fails rather than omit an entry that it cannot list.
    let error = list(&store).await.unwrap_err();
    assert!(error.to_string().contains("/out: a symbolic link in the path leads out of the folder"), "{error}");
}

#[tokio::test]
async fn test_links_within_the_folder_are_followed_and_dangling_ones_are_no_objects() {
    let dir = tempfile::tempdir().unwrap();
    let store = Local::new(dir.path()).unwrap();
    put(&store, "a/real").await.unwrap();
    symlink("a/real", dir.path().join("linked")).unwrap();
    symlink("nothing", dir.path().join("dangling")).unwrap();
    assert_eq!(list(&store).await.unwrap(), ["a/real", "linked"]);
    assert_eq!(get(&store, "linked").await.unwrap(), b"bytes");
    assert_eq!(get(&store, "dangling").await.unwrap_err().code(), "not-found");
    symlink("a", dir.path().join("folder")).unwrap();
    let error = list(&store).await.unwrap_err();
    assert!(error.to_string().contains("/folder: it is a symbolic link to a folder"), "{error}");
}

#[tokio::test]
async fn test_folders_and_pipes_are_no_objects() {
    let dir = tempfile::tempdir().unwrap();
    let store = Local::new(dir.path()).unwrap();
    put(&store, "a/b").await.unwrap();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(list(&store).await.unwrap(), ["a/b"]);
    for key in ["a", "pipe", "a/b/c"] {
        assert_eq!(get(&store, key).await.unwrap_err().code(), "not-found", "{key}");
    }
}

#[tokio::test]
async fn test_missing_folder_lists_as_not_found_and_is_made_by_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let store = Local::new(&dir.path().join("not/yet")).unwrap();
    assert_eq!(list(&store).await.unwrap_err().code(), "not-found");
    store.delete(&[Key::from("k")], Deadline::NEVER).await.unwrap();
    put(&store, "k").await.unwrap();
    assert_eq!(list(&store).await.unwrap(), ["k"]);
}

#[tokio::test]
async fn test_write_that_the_system_refuses_is_denied() {
    // The kernel allows no new files in this folder, not even to root.
    let error = put(&Local::new(Path::new("/sys/kernel")).unwrap(), "k").await.unwrap_err();
    assert_eq!(error.code(), "denied", "{error}");
    assert!(error.to_string().contains("/sys/kernel"), "{error}");
}

#[tokio::test]
async fn test_file_written_to_while_it_is_read_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k");
    std::fs::write(&path, vec![1; 5 << 20]).unwrap();
    let store = Local::new(dir.path()).unwrap();
    let object = ObjectRef::current(Key::from("k"));
    for size in [5 << 20, 1 << 20, 6 << 20] {
        // Set an old time, because two writes within one clock tick of the file system get the same mtime.
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000)).unwrap();
        let mut got = store.get_ranges(&object, &[ByteRange::WHOLE], Deadline::NEVER).await.unwrap();
        got.chunks.try_next().await.unwrap().unwrap();
        std::fs::write(&path, vec![2; size]).unwrap();
        let error = got.chunks.try_collect::<Vec<_>>().await.unwrap_err();
        assert_eq!(error.code(), "changed", "{error}");
    }
}

#[tokio::test]
async fn test_failed_write_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("taken")).unwrap();
    let store = Local::new(dir.path()).unwrap();
    assert_eq!(put(&store, "taken").await.unwrap_err().code(), "key");
    put(&store, "file").await.unwrap();
    assert_eq!(put(&store, "file/below").await.unwrap_err().code(), "key");
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}
