// Polling: one request in flight, with back-off while no peer answers, paused while the page is hidden.

const PAUSE_MS_MAX = 15000;

// Awaits `work`, pauses, and repeats. `wake` ends the pause early; `stop` ends polling.
export function poll(work, { every_ms, on_data, on_error }) {
	const over = new AbortController();
	let failures = 0, timer, hurry;

	function pause(ms) {
		return new Promise((resolve) => {
			hurry = resolve;
			timer = setTimeout(resolve, ms);
		}).finally(() => clearTimeout(timer));
	}

	async function seen() {
		if (!document.hidden) return;
		await new Promise((resolve) => {
			hurry = resolve;
			document.addEventListener("visibilitychange", resolve, { once: true, signal: over.signal });
		});
	}

	async function run() {
		while (!over.signal.aborted) {
			try {
				const data = await work(over.signal);
				if (over.signal.aborted) return;
				failures = 0;
				on_data(data);
			} catch (error) {
				if (over.signal.aborted) return;
				failures++;
				if (on_error(error) === "stop") return;
			}
			await pause(failures ? Math.min(PAUSE_MS_MAX, every_ms * 2 ** (failures - 1)) : every_ms);
			await seen();
		}
	}

	run();
	return { wake: () => hurry?.(), stop: () => (over.abort(), hurry?.()) };
}
