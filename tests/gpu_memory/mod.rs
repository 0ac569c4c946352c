//! Numbers on their way to the device, on it, and back.

use super::*;

#[test]
fn memory() {
    for (n, c) in [(0, 3), (1, 1), (5, 7), (33, 64), (3000, 5)] {
        parity!(
            0.0,
            |b| {
                let x = matrix(b, n, c, 1);
                assert_eq!(b.shape(&x), (n, c));
                vec![read(b, &x), read(b, &b.zeros(n, c)), read(b, &b.rows(&x, n / 3..n)), read(b, &b.rows(&x, 0..0))]
            },
            "{n} x {c}"
        );
    }
}

#[test]
fn writing_again_waits_its_turn() {
    for gpu in gpus() {
        for (rows, n) in [(1, 10), (1 << 14, 1 << 18)] {
            let mut x = gpu.upload(rows, n / rows, vec![1.0; n]).unwrap();
            let mut sum = gpu.zeros(rows, n / rows);
            for i in 0..5 {
                gpu.add(&mut sum, &x);
                gpu.write(&mut x, &vec![i as f32; n]).unwrap();
            }
            gpu.add(&mut sum, &x);
            assert!(read(gpu, &sum).iter().all(|&s| s == 1.0 + 0.0 + 1.0 + 2.0 + 3.0 + 4.0));
            assert!(gpu.write(&mut x, &[0.0]).is_err());
        }
    }
}

#[test]
fn several_downloads_at_once() {
    if gpus().is_empty() {
        return;
    }
    // Its own device: submissions are counted.
    let gpu = Gpu::new(None).unwrap();
    let shapes = [(3, 5), (0, 4), (4, 0), (1, 1), (70, 33), (2000, 3000), (2000, 3001), (1, 7)];
    let data: Vec<Vec<f32>> = shapes.iter().enumerate().map(|(i, (r, c))| noise(r * c, i as u64)).collect();
    let up = |((r, c), d): (&(usize, usize), &Vec<f32>)| gpu.upload(*r, *c, d.clone()).unwrap();
    let tensors: Vec<_> = shapes.iter().zip(&data).map(up).collect();
    gpu.finish().unwrap();
    let before = gpu.submissions();
    assert!(gpu.download_all(&tensors.iter().collect::<Vec<_>>()).unwrap() == data);
    assert_eq!(gpu.submissions() - before, 2, "staging memory holds several tensors");
    let before = gpu.submissions();
    assert!(gpu.download_all(&tensors[..5].iter().collect::<Vec<_>>()).unwrap() == data[..5]);
    assert_eq!(gpu.submissions() - before, 1, "one wait");
    assert!(gpu.download_all(&[]).unwrap().is_empty());
}
