// What the two directions of a block share: names, shapes and views.
#include "block.hpp"

namespace voltapile {

Block::Block(const LayerContext& context, const FlatLayout& flat, int layer, bool training,
             bool deferred_inputs)
    : context_(&context),
      local_heads_(context.architecture->model.heads / context.sizes.tp),
      local_mlp_(context.architecture->model.mlp / context.sizes.tp),
      parameters_(*context.architecture, flat, layer, context.sizes.tp) {
  const Architecture& a = *context.architecture;
  const Layer& description = a.layers[static_cast<size_t>(layer)];
  block_ = description.block;
  // timm: torch.linspace(0, drop_path, depth)
  drop_rate_ = training && a.model.depth > 1
                   ? a.model.drop_path * block_ / static_cast<double>(a.model.depth - 1)
                   : 0;
  saved_ = TensorTable(saved_tensors(a, description, context.sizes));
  deferred_ = TensorTable(deferred_tensors(a, description, context.sizes, deferred_inputs));
  workspace_ = TensorTable(workspace_tensors(a, description, context.sizes));
}

Block::Views Block::bind(const Memory& memory) const {
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
  const auto saved = [&](std::string_view name) { return saved_.at(name, memory.saved); };
  const auto workspace = [&](std::string_view name) {
    return workspace_.at(name, memory.workspace);
  };
  // Only a split backward has memory for what it defers.
  const auto deferred = [&](std::string_view name) {
    return memory.deferred != nullptr ? deferred_.at(name, memory.deferred) : TensorView{};
  };
  return {
      .weights = parameters([&](std::string_view n) { return parameters_.at(n, memory.weights); }),
      .gradients =
          parameters([&](std::string_view n) { return parameters_.at(n, memory.gradients); }),
      .saved = {.norm1 = saved("norm1"),
                .mean1 = saved("norm1.mean"),
                .rstd1 = saved("norm1.rstd"),
                .qkv = saved("attn.qkv"),
                .qk_norm = saved("attn.qk_norm"),
                .qk_stats = saved("attn.qk_norm.stats"),
                .attention = saved("attn.out"),
                .lse = saved("attn.lse"),
                .branch1 = saved("attn.branch"),
                .middle = saved("middle"),
                .norm2 = saved("norm2"),
                .mean2 = saved("norm2.mean"),
                .rstd2 = saved("norm2.rstd"),
                .pre = saved("mlp.pre"),
                .act = saved("mlp.act"),
                .branch2 = saved("mlp.branch")},
      .deferred = {.branch1_gradient = deferred("attn.branch_gradient"),
                   .qkv_gradient = deferred("attn.qkv_gradient"),
                   .branch2_gradient = deferred("mlp.branch_gradient"),
                   .pre_gradient = deferred("mlp.pre_gradient"),
                   .norm1 = deferred("norm1"),
                   .attention = deferred("attn.out"),
                   .norm2 = deferred("norm2"),
                   .act = deferred("mlp.act")},
      .workspace = {.gathered = workspace("gathered"),
                    .product = workspace("product"),
                    .norm = workspace("norm"),
                    .qk_norm = workspace("qk_norm"),
                    .act = workspace("act"),
                    .branch_gradient = workspace("branch_gradient"),
                    .inner_gradient = workspace("inner_gradient")},
      .x = memory.x,
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
