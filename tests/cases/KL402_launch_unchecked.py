from torch.utils.cpp_extension import load_inline

SOURCE = r"""
torch::Tensor bad(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous());
  const c10::cuda::CUDAGuard guard(x.device());
  gate<<<n, 256, 0, stream>>>(x.data_ptr<float>(), n);  // #! KL402
  gate<<<n, 128, 0, stream>>>(x.data_ptr<float>(), n);
  return x;
}
"""
built = load_inline("built", "torch::Tensor bad(torch::Tensor x);", SOURCE, functions=["bad"])

NEAR_MISSES = r"""
torch::Tensor good(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous());
  const c10::cuda::CUDAGuard guard(x.device());
  gate<<<n, 256, 0, stream>>>(x.data_ptr<float>(), n);
  AT_CUDA_CHECK(cudaGetLastError());
  return x;
}
"""
near_misses = load_inline(name="near_misses", cpp_sources="", cuda_sources=[NEAR_MISSES])
