"""stable-baselines3: PPO learns to balance a pole, by the package's own loop of rollouts and updates; float32."""

import sys

from stable_baselines3 import PPO

small = "--small" in sys.argv
model = PPO("MlpPolicy", "CartPole-v1", n_steps=256 if small else 2048, batch_size=64, device="cpu")
model.learn(20_000 if small else 200_000)
