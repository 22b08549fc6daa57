// When a server that keeps ending is left alone: safe mode instead of a loop.

const MOST = 4;
const WITHIN_MS = 180_000;

export class Crashes {
  private times: number[] = [];

  /** Count one; false: too many, do not start it again. */
  mayRestart(now: number): boolean {
    this.times = [...this.times.filter((time) => now - time < WITHIN_MS), now];
    return this.times.length <= MOST;
  }

  /** Somebody asked for another try. */
  forget(): void {
    this.times = [];
  }

  get words(): string {
    return `${this.times.length} times within ${WITHIN_MS / 60_000} minutes`;
  }
}

/** Is `version` at least `wanted`? Anything that is no version is not. */
export function atLeast(version: string | undefined, wanted: string): boolean {
  const [found, least] = [version, wanted].map((text) =>
    /^(\d+)\.(\d+)\.(\d+)/
      .exec(text ?? "")
      ?.slice(1)
      .map(Number),
  );
  if (found === undefined || least === undefined) return false;
  for (const [index, number] of least.entries()) {
    if (found[index] !== number) return (found[index] ?? 0) > number;
  }
  return true;
}
