//! What the host tells a shader: one struct each, with the fields of the shader's `Params` in their order (tested).

/// A shader's parameters.
pub(super) trait Params: bytemuck::Pod {
    /// The words of the uniform buffer.
    fn words(&self) -> &[u32] {
        bytemuck::cast_slice(std::slice::from_ref(self))
    }
}

/// A public stream as chacha.wgsl reads it, `array<vec4<u32>, 3>`.
pub(super) type Stream = [u32; 12];

macro_rules! params {
    ($($($file:literal)+ => $name:ident { $($field:ident: $ty:ident),* $(,)? })*) => {
        $(
            #[doc = concat!("Of the shader ", $("`", $file, "` "),+, ", which says what each means.")]
            #[repr(C)]
            #[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
            pub(super) struct $name { $(pub(super) $field: $ty),* }

            impl Params for $name {}
        )*

        /// The fields of every struct here and their types, by the stem of the shader that reads them. For a test against the shaders.
        pub fn parameters() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
            let mut all = Vec::new();
            $(
                let fields = vec![$((stringify!($field), stringify!($ty))),*];
                all.extend([$($file),+].map(|file| (file, fields.clone())));
            )*
            all
        }
    };
}

params! {
    "attention" => Attention {
        work: u32, heads: u32, group: u32, scale: f32, window: u32, slopes: u32, keep_lse: u32,
        q_start: u32, q_line: u32, k_start: u32, k_line: u32, v_start: u32, v_line: u32,
        out_start: u32, out_line: u32, second_start: u32, lse_start: u32, lse_line: u32, kept_start: u32, kept_line: u32,
        dot_start: u32, dot_line: u32, k_dot: u32, v_dot: u32, rows: u32, cols: u32,
    }
    "norm" "rms_norm" => Norm {
        rows: u32, groups: u32, width: u32, eps: f32, line: u32, start_x: u32, start_gain: u32, start_bias: u32,
        start_y: u32, start_dx: u32, start_stats: u32, line_stats: u32, line_y: u32, flags: u32,
    }
    "rope" => Rope {
        rows: u32, heads: u32, width: u32, pairs: u32, x_start: u32, x_line: u32, table_start: u32, table_line: u32,
        sign: f32,
    }
    "gated" => Gated {
        rows: u32, cols: u32, gate_start: u32, gate_line: u32, up_start: u32, up_line: u32,
        gate_dot_start: u32, gate_dot_line: u32, up_dot_start: u32, up_dot_line: u32, out_start: u32, out_line: u32,
    }
    "linear" => Linear {
        m: u32, n: u32, k: u32, line_a: u32, line_b: u32, line_c: u32, start_a: u32, start_b: u32, start_c: u32,
        start_bias: u32, add: u32, has_bias: u32, tiles_n: u32, tiles: u32,
    }
    "matvec" => Matvec {
        n: u32, k: u32, line_b: u32, start_a: u32, start_b: u32, start_c: u32, start_bias: u32, add: u32, has_bias: u32,
    }
    "embedding" => Embedding {
        start_table: u32, start_rows: u32, line: u32, count: u32, first: u32, last: u32, add: u32, parts: u32,
    }
    "reduce" => Reduce {
        rows: u32, cols: u32, line: u32, start_a: u32, start_b: u32, start_out: u32, chunk: u32, parts: u32, add: u32,
    }
    "cross_entropy" "token_stats" => Logits { rows: u32, cols: u32, line: u32, start_logits: u32, start_out: u32, first: u32 }
    "direction" => Direction {
        stream: Stream, block_low: u32, block_high: u32, skip: u32, count: u32, cols: u32, line: u32, start: u32,
        scale: f32, blocks: u32,
    }
    "update" => Update {
        start_w: u32, start_m: u32, start_v: u32, start_g: u32, count: u32, steps: u32, scale: f32,
        decay: f32, rate: f32, correction: f32, keep_m: f32, take_m: f32, keep_v: f32, take_v: f32, eps: f32,
    }
    "compress" => Compress {
        stream: Stream, rows: u32, cols: u32, line: u32, start_x: u32, start_memory: u32, start_total: u32, before: u32, count: u32,
        levels: f32, share: f32, remembers: u32,
    }
    "clip" => Clip {
        count: u32, line: u32, start_x: u32, start_factors: u32, kind: u32, bound: f32, gamma: f32, up: f32,
    }
    "sample_norm" => SampleNorm {
        work: u32, start_a: u32, line_a: u32, cols_a: u32, start_b: u32, line_b: u32, cols_b: u32, start_c: u32,
        line_c: u32, start_out: u32, parts: u32, floor_a: f32, floor_b: f32, up: f32,
    }
    "sketch" => Sketch {
        stream: Stream, block_low: u32, block_high: u32, skip: u32, blocks: u32, rows: u32, cols: u32, k: u32, side: u32,
        start_x: u32, line_x: u32, start_out: u32, line_out: u32,
    }
    "activation" "residual" => Elementwise { start_x: u32, start_y: u32, count: u32, line: u32 }
}
