// SPDX-License-Identifier: Apache-2.0
//! Fuzzes lists of URLs: no panic, and every key is unique and not empty.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use penstock_dataset::UrlList;

fuzz_target!(|data: &[u8]| {
    if let Ok(list) = UrlList::parse(data, "urls.txt") {
        let keys: HashSet<&[u8]> = list.objects.iter().map(|listed| listed.key.as_bytes()).collect();
        assert_eq!(keys.len(), list.objects.len());
        assert!(keys.iter().all(|key| !key.is_empty()));
    }
});
