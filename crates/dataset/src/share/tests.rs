// SPDX-License-Identifier: Apache-2.0
use penstock_types::Key;
use proptest::prelude::*;

use super::*;
use crate::manifest::Entry;

fn manifest(sizes: &[u64]) -> Manifest {
    let objects = sizes.iter().enumerate().map(|(at, &size)| Entry::new(Key::from(format!("k{at:05}").as_str()), size));
    Manifest::new("memory://m/".into(), objects.collect())
}

proptest! {
    #[test]
    fn prop_shares_are_disjoint_and_complete(sizes in prop::collection::vec(0u64..1 << 40, 0..200), nodes in 1u32..40) {
        let plan = SharePlan::new(&manifest(&sizes), nodes).unwrap();
        let mut seen: Vec<usize> = (0..nodes).flat_map(|node| plan.share(node)).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..sizes.len()).collect::<Vec<_>>());
        prop_assert_eq!(plan.loads().iter().sum::<u64>(), sizes.iter().sum::<u64>());
    }

    #[test]
    fn prop_shares_ignore_the_listing_order(sizes in prop::collection::vec(0u64..1000, 1..100), nodes in 1u32..9, seed: u64) {
        let listed = manifest(&sizes);
        let mut shuffled = listed.clone();
        let mut state = seed | 1;
        for at in (1..shuffled.objects.len()).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            shuffled.objects.swap(at, (state >> 33) as usize % (at + 1));
        }
        let (a, b) = (SharePlan::new(&listed, nodes).unwrap(), SharePlan::new(&shuffled, nodes).unwrap());
        for node in 0..nodes {
            let keys = |m: &Manifest, p: &SharePlan| {
                let mut keys: Vec<_> = p.share(node).iter().map(|&at| m.objects[at].key.clone()).collect();
                keys.sort();
                keys
            };
            prop_assert_eq!(keys(&listed, &a), keys(&shuffled, &b));
        }
    }
}

/// Lognormal sizes with sigma 1 and median 1 MB, from splitmix64 by the Box-Muller transform.
fn lognormal(count: usize, seed: u64) -> Vec<u64> {
    let mut state = seed;
    let mut uniform = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed ^ (mixed >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    (0..count)
        .map(|_| {
            let (a, b) = (uniform(), uniform());
            let normal = (-2.0 * a.ln()).sqrt() * (2.0 * std::f64::consts::PI * b).cos();
            (1e6 * normal.exp()) as u64
        })
        .collect()
}

#[test]
fn shares_of_lognormal_sizes_are_within_two_percent_of_even() {
    for seed in 1..=20 {
        let sizes = lognormal(1024, seed);
        let plan = SharePlan::new(&manifest(&sizes), 32).unwrap();
        let mean = sizes.iter().sum::<u64>() as f64 / 32.0;
        let worst = *plan.loads().iter().max().unwrap() as f64 / mean;
        assert!(worst <= 1.02, "seed {seed}: max/mean {worst:.4}");
    }
}

#[test]
fn shares_of_fewer_objects_than_nodes_leave_some_empty() {
    let plan = SharePlan::new(&manifest(&[5, 7]), 4).unwrap();
    assert_eq!((plan.share(0), plan.share(1), plan.share(2), plan.share(9)), (vec![1], vec![0], vec![], vec![]));
    assert!(SharePlan::new(&manifest(&[1]), 0).is_err());
}

#[test]
fn shares_of_empty_objects_are_spread_by_count() {
    let plan = SharePlan::new(&manifest(&[0; 9]), 3).unwrap();
    assert!((0..3).all(|node| plan.share(node).len() == 3));
}

fn mixed(sizes: &[u64]) -> Manifest {
    let suffix = |at: usize| if at.is_multiple_of(2) { ".gz" } else { "" };
    let objects = sizes
        .iter()
        .enumerate()
        .map(|(at, &size)| Entry::new(Key::from(format!("k{at:05}{}", suffix(at)).as_str()), size));
    Manifest::new("memory://m/".into(), objects.collect())
}

#[test]
fn shares_of_mixed_codecs_are_even_in_stored_bytes_and_in_what_is_written() {
    let division = Division { decompress: true, ..Division::default() };
    for seed in 1..=10 {
        // Sizes are limited, because one object larger than a node's even share would make balancing impossible.
        let sizes: Vec<u64> = lognormal(1024, seed).into_iter().map(|size| size.min(8_000_000)).collect();
        let plan = SharePlan::divide(&mixed(&sizes), 32, &division).unwrap();
        for loads in [plan.loads(), plan.costs()] {
            let mean = loads.iter().sum::<u64>() as f64 / 32.0;
            let worst = *loads.iter().max().unwrap() as f64 / mean;
            assert!(worst <= 1.02, "seed {seed}: max/mean {worst:.4}");
        }
    }
}

#[test]
fn shares_follow_the_capacity_of_nodes() {
    let division = Division { weights: "1, 1 2\n4".parse().unwrap(), ..Division::default() };
    let sizes = lognormal(1024, 3);
    let plan = SharePlan::divide(&manifest(&sizes), 4, &division).unwrap();
    let all = sizes.iter().sum::<u64>() as f64;
    for (node, weight) in [1.0, 1.0, 2.0, 4.0].into_iter().enumerate() {
        let over = plan.loads()[node] as f64 / (all * weight / 8.0);
        assert!((0.98..=1.02).contains(&over), "node {node}: {over:.4}");
    }
    assert!(SharePlan::divide(&manifest(&sizes), 5, &division).is_err());
    for bad in ["", "1,x", "0", "-1", "nan", "inf"] {
        assert_eq!(bad.parse::<Weights>().unwrap_err().code(), "config", "{bad}");
    }
}

/// Study A: the names are `univ_ics_2019-03_aNNNNNNN_YYY.tfrecord`, and the groups YYY are 000 to 063. Node 0 of 16
/// gets the groups 000 to 003.
#[test]
fn shares_by_name_are_those_of_the_published_rule() {
    let keys: Vec<String> = (0..256)
        .map(|at| format!("t/univ_ics_2019-03_a{:07}_{:03}.tfrecord.gz", 1_000_000 + at / 64, at % 64))
        .collect();
    let objects = keys.iter().map(|key| Entry::new(Key::from(key.as_str()), 7)).collect();
    let manifest = Manifest::new("memory://m/".into(), objects);
    let division = Division { by: "name:*_{}.tfrecord*".parse().unwrap(), ..Division::default() };
    let plan = SharePlan::divide(&manifest, 16, &division).unwrap();
    for node in 0..16u32 {
        let share = plan.share(node);
        assert_eq!(share.len(), 16);
        for at in share {
            let key = manifest.objects[at].key.to_string();
            let group: u32 = key[key.len() - "000.tfrecord.gz".len()..][..3].parse().unwrap();
            assert_eq!(group / 4, node, "{key}");
        }
    }
    // Groups are divided by node weight too, and objects without a number are balanced by bytes.
    let mut more = manifest.clone();
    more.objects.push(Entry::new(Key::from("README"), 5));
    let more = Manifest::new(more.url, more.objects);
    let division = Division { weights: "1,3".parse().unwrap(), ..division };
    let plan = SharePlan::divide(&more, 2, &division).unwrap();
    assert_eq!(plan.sums(|_| 1).iter().sum::<u64>(), 257);
    assert!((64..=65).contains(&plan.sums(|_| 1)[0]), "{:?}", plan.sums(|_| 1));
    let none = Division { by: "name:x{}y".parse().unwrap(), ..Division::default() };
    assert!(SharePlan::divide(&manifest, 2, &none).unwrap_err().to_string().contains("matches none of the 256 keys"));
    for bad in ["size", "name:*", "name:{}{}"] {
        assert_eq!(bad.parse::<ShareBy>().unwrap_err().code(), "config", "{bad}");
    }
}

proptest! {
    #[test]
    fn prop_divisions_are_disjoint_complete_and_alike_on_every_node(
        sizes in prop::collection::vec(0u64..1 << 40, 0..120),
        weights in prop::collection::vec(1u32..50, 1..12),
        decompress: bool,
        by_name: bool,
    ) {
        let weights_text = weights.iter().map(|weight| weight.to_string()).collect::<Vec<_>>().join(",");
        let by = if by_name { "name:k{}*".parse().unwrap() } else { ShareBy::Bytes };
        let division = Division { by, weights: weights_text.parse().unwrap(), decompress };
        let nodes = weights.len() as u32;
        let manifest = mixed(&sizes);
        let plan = SharePlan::divide(&manifest, nodes, &division).unwrap();
        let mut seen: Vec<usize> = (0..nodes).flat_map(|node| plan.share(node)).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..sizes.len()).collect::<Vec<_>>());
        prop_assert_eq!(plan.loads().iter().sum::<u64>(), sizes.iter().sum::<u64>());
        prop_assert_eq!(&plan, &SharePlan::divide(&manifest.clone(), nodes, &division).unwrap());
    }
}
