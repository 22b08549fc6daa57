from torch.utils.cpp_extension import load_inline

SOURCE = r"""
torch::Tensor bad(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous());
  const c10::cuda::CUDAGuard guard(x.device());
  cudaMalloc(&tmp, 4 * n);  // #! KL404
  cudaDeviceSynchronize();  // #! KL404
  return x;
}
"""
built = load_inline("built", "torch::Tensor bad(torch::Tensor x);", SOURCE, functions=["bad"])

NEAR_MISSES = r"""
torch::Tensor good(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous());
  const c10::cuda::CUDAGuard guard(x.device());
  // cudaDeviceSynchronize();
  auto tmp = torch::empty({n}, x.options());
  cudaMemcpyAsync(tmp.data_ptr(), other, 4 * n, cudaMemcpyDeviceToDevice, stream);
  return x;
}
"""
near_misses = load_inline(name="near_misses", cpp_sources="", cuda_sources=[NEAR_MISSES])
