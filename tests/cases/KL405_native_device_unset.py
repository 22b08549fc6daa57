from torch.utils.cpp_extension import load_inline

SOURCE = r"""
torch::Tensor bad(torch::Tensor x) {
  TORCH_CHECK(x.is_contiguous());
  gate<<<n, 256, 0, stream>>>(x.data_ptr<float>(), n);  // #! KL405
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return x;
}
"""
built = load_inline("built", "torch::Tensor bad(torch::Tensor x);", SOURCE, functions=["bad"])
