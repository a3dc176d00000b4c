// SPDX-License-Identifier: Apache-2.0
//! Fuzzes pool placements in JSON: no panic, and parsed placements survive a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_feed::Placements;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(routes) = Placements::from_json(text) {
        let written = routes.to_json().unwrap();
        assert_eq!(Placements::from_json(&written).unwrap(), routes);
    }
});
