// What the two directions of a block share: names, shapes and views.
#include "block.hpp"

namespace voltapile {

Block::Block(const LayerContext& context, int block, LayerTables tables)
    : context_(&context),
      tables_(std::move(tables)),
      block_(block),
      local_heads_(context.architecture->model.heads / context.sizes.tp) {
  const auto& model = context.architecture->model;
  // timm: torch.linspace(0, drop_path, depth)
  if (context.training && model.depth > 1)
    drop_rate_ = model.drop_path * block_ / static_cast<double>(model.depth - 1);
}

Block::Views Block::bind(const LayerMemory& memory, const TensorView& x) const {
  const auto parameters = [&](auto&& at) {
    return BlockParameters{
        .norm1_weight = at("norm1.weight"),
        .norm1_bias = at("norm1.bias"),
        .qkv_weight = at("attn.qkv.weight"),
        .qkv_bias = at("attn.qkv.bias"),
        .q_norm_weight = at("attn.q_norm.weight"),
        .q_norm_bias = at("attn.q_norm.bias"),
        .k_norm_weight = at("attn.k_norm.weight"),
        .k_norm_bias = at("attn.k_norm.bias"),
        .proj_weight = at("attn.proj.weight"),
        .proj_bias = at("attn.proj.bias"),
        .scale1 = at("ls1.gamma"),
        .norm2_weight = at("norm2.weight"),
        .norm2_bias = at("norm2.bias"),
        .fc1_weight = at("mlp.fc1.weight"),
        .fc1_bias = at("mlp.fc1.bias"),
        .fc2_weight = at("mlp.fc2.weight"),
        .fc2_bias = at("mlp.fc2.bias"),
        .scale2 = at("ls2.gamma"),
    };
  };
  const auto saved = [&](std::string_view name) { return tables_.saved(name, memory); };
  const auto temporary = [&](std::string_view name) { return tables_.temporary(name, memory); };
  const auto attended = [&](std::string_view name) {
    return context_->sizes.rebuild_attention ? temporary(name) : saved(name);
  };
  // Only a split backward has memory for what it defers.
  const auto later = [&](std::string_view name) {
    return memory.deferred != nullptr ? tables_.later(name, memory) : TensorView{};
  };
  return {
      .weights = parameters([&](std::string_view name) { return tables_.weight(name, memory); }),
      .gradients =
          parameters([&](std::string_view name) { return tables_.gradient(name, memory); }),
      .saved = {.norm1 = saved("norm1"),
                .mean1 = saved("mean1"),
                .rstd1 = saved("rstd1"),
                .qkv = saved("qkv"),
                .qkv_normed = saved("qkv_normed"),
                .qk_stats = saved("qk_stats"),
                .attention = attended("attention"),
                .lse = attended("lse"),
                .branch1 = saved("branch1"),
                .middle = saved("middle"),
                .norm2 = saved("norm2"),
                .mean2 = saved("mean2"),
                .rstd2 = saved("rstd2"),
                .fc1 = saved("fc1"),
                .gelu = saved("gelu"),
                .branch2 = saved("branch2")},
      .deferred = {.branch1_gradient = later("branch1_gradient"),
                   .qkv_gradient = later("qkv_gradient"),
                   .branch2_gradient = later("branch2_gradient"),
                   .fc1_gradient = later("fc1_gradient"),
                   .norm1 = later("norm1"),
                   .attention = later("attention"),
                   .norm2 = later("norm2"),
                   .gelu = later("gelu")},
      .workspace = {.gathered = temporary("gathered"),
                    .product = temporary("product"),
                    .norm = temporary("norm"),
                    .qkv_normed = temporary("qkv_normed"),
                    .gelu = temporary("gelu"),
                    .branch_gradient = temporary("branch_gradient"),
                    .inner_gradient = temporary("inner_gradient")},
      .x = x,
  };
}

DropPath Block::drop_path(const MicroStep& step, Branch branch) const {
  return {.rate = static_cast<float>(drop_rate_),
          .seed = context_->seed,
          .item = static_cast<uint32_t>(2 * block_ + static_cast<int>(branch)),
          .state = step.state,
          .sample_offset = step.sample_offset,
          .row_offset = context_->row_offset(),
          .rows_per_sample = context_->architecture->tokens()};
}

TensorView Block::as_qkv(const TensorView& matrix) const {
  const Architecture& a = *context_->architecture;
  return matrix.reshaped({context_->sizes.micro, a.tokens(), 3, local_heads_, a.head_dim()});
}

TensorView Block::as_heads(const TensorView& matrix) const {
  const Architecture& a = *context_->architecture;
  return matrix.reshaped({context_->sizes.micro, a.tokens(), local_heads_, a.head_dim()});
}

}  // namespace voltapile
