from torch.utils.cpp_extension import load_inline

SOURCE = r"""
torch::Tensor bad(torch::Tensor x) {
  float* p = x.data_ptr<float>();  // #! KL403
  p[0] = 1.0f;
  return x;
}
"""
built = load_inline("built", "torch::Tensor bad(torch::Tensor x);", SOURCE, functions=["bad"])
