from torch.utils.cpp_extension import load_inline

SOURCE = r"""
torch::Tensor bad(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous());
  const c10::cuda::CUDAGuard guard(x.device());
  gate<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), n);  // #! KL401
  gate<<<dim3(n, 1), dim3(256, 1, 1), sizeof(float)>>>(x.data_ptr<float>(), n);  // #! KL401
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return x;
}
"""
built = load_inline("built", "torch::Tensor bad(torch::Tensor x);", SOURCE, functions=["bad"])

NEAR_MISSES = r"""
torch::Tensor good(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous());
  const c10::cuda::CUDAGuard guard(x.device());
  // gate<<<1, 1>>>(x, n) in a comment
  gate<<<dim3(n, 1), 256, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), n);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return x;
}
"""
near_misses = load_inline(name="near_misses", cpp_sources="", cuda_sources=[NEAR_MISSES])
