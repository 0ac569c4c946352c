//! The matrix product against the simplest shader that computes one.

use crate::common::noise;
use crate::gpu::milliseconds;
use ferret::backend::{Compute, Gpu, Memory};
use ferret::ops::Order;

/// Ours against one thread an element, both on the same adapter.
pub fn run(gpu: &Gpu) {
    println!("{:<28} {:>10} {:>10} {:>8}", "matrix product", "GFLOP/s", "naive", "ratio");
    let naive = Naive::new(&gpu.info().name);
    for (m, k, n) in [(256, 256, 256), (512, 512, 512), (256, 768, 768), (128, 128, 2048)] {
        let (a, b) = (noise(m * k, 1), noise(k * n, 2));
        let (x, w) = (gpu.upload(m, k, a.clone()).unwrap(), gpu.upload(k, n, b.clone()).unwrap());
        let ours = gpu.download(&gpu.linear(&x, &w, Order::InOut, None)).unwrap();
        let ours_time = milliseconds(3, || {
            drop(gpu.linear(&x, &w, Order::InOut, None));
            gpu.finish().unwrap();
        });
        let (theirs, naive_time) = naive.product(&a, &b, m, k, n);
        assert!(ours.iter().zip(&theirs).all(|(x, y)| (x - y).abs() < 1e-2), "products differ");
        let rate = |ms: f64| 2.0 * (m * k * n) as f64 / ms / 1e6;
        let (fast, slow) = (rate(ours_time), rate(naive_time));
        println!("{:<28} {fast:>10.2} {slow:>10.2} {:>8.2}", format!("{m} x {k} x {n}"), fast / slow);
    }
    println!();
}

const NAIVE: &str = "
    @group(0) @binding(0) var<storage, read> size: array<u32>;
    @group(0) @binding(1) var<storage, read> a: array<f32>;
    @group(0) @binding(2) var<storage, read> b: array<f32>;
    @group(0) @binding(3) var<storage, read_write> c: array<f32>;
    @compute @workgroup_size(8, 8)
    fn main(@builtin(global_invocation_id) id: vec3<u32>) {
        if (id.x >= size[2] || id.y >= size[0]) { return; }
        var sum = 0.0;
        for (var k = 0u; k < size[1]; k += 1u) {
            sum += a[id.y * size[1] + k] * b[k * size[2] + id.x];
        }
        c[id.y * size[2] + id.x] = sum;
    }";

/// A device of its own on the same adapter, with the textbook shader.
struct Naive {
    device: wgpu::Device,
    queue: wgpu::Queue,
    pipeline: wgpu::ComputePipeline,
}

impl Naive {
    fn new(name: &str) -> Self {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle_from_env());
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
        let adapter = adapters.into_iter().find(|a| a.get_info().name == name).expect("the adapter just used");
        let descriptor = wgpu::DeviceDescriptor { required_limits: adapter.limits(), ..Default::default() };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).unwrap();
        let source = wgpu::ShaderSource::Wgsl(NAIVE.into());
        // The same checks as ours.
        let checks = wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..wgpu::ShaderRuntimeChecks::checked() };
        // SAFETY: its only loop counts towards a bound that does not change.
        let module = unsafe {
            device.create_shader_module_trusted(wgpu::ShaderModuleDescriptor { label: None, source }, checks)
        };
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: None,
            compilation_options: Default::default(),
            cache: None,
        });
        Self { device, queue, pipeline }
    }

    /// The product and its time in milliseconds.
    fn product(&self, a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> (Vec<f32>, f64) {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        let buffer = |bytes: usize, usage| {
            let size = bytes as u64;
            self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
        };
        let bytes = m * n * 4;
        let buffers = [buffer(16, usage), buffer(a.len() * 4, usage), buffer(b.len() * 4, usage), buffer(bytes, usage)];
        let read = buffer(bytes, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
        self.queue.write_buffer(&buffers[0], 0, bytemuck::cast_slice(&[m as u32, k as u32, n as u32, 0]));
        self.queue.write_buffer(&buffers[1], 0, bytemuck::cast_slice(a));
        self.queue.write_buffer(&buffers[2], 0, bytemuck::cast_slice(b));
        let entries: Vec<_> = (0u32..)
            .zip(&buffers)
            .map(|(binding, b)| wgpu::BindGroupEntry { binding, resource: b.as_entire_binding() })
            .collect();
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        let ms = milliseconds(3, || {
            let mut encoder = self.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&self.pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(n.div_ceil(8) as u32, m.div_ceil(8) as u32, 1);
            drop(pass);
            self.queue.submit([encoder.finish()]);
            self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&buffers[3], 0, &read, 0, bytes as u64);
        self.queue.submit([encoder.finish()]);
        read.map_async(wgpu::MapMode::Read, .., |_| ());
        self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let numbers = bytemuck::cast_slice(&read.get_mapped_range(..).unwrap()).to_vec();
        (numbers, ms)
    }
}
