"""The command that stops Flower's background process: ``fedkd stop``."""

from fedkd_flwr.cli.output import one_clear_line, say


def stop() -> None:
    """Stop the SuperLink that `flwr run` leaves running in the background."""
    with one_clear_line():
        import psutil

        from fedkd_flwr.engines.background_superlink import ADDRESS, stop_background_superlinks

        try:
            stopped = stop_background_superlinks()
        except psutil.AccessDenied as error:
            raise RuntimeError(
                f"Process {error.pid}, the SuperLink on {ADDRESS}, cannot be stopped: "
                "permission denied."
            ) from None
        if not stopped:
            say(f"No background SuperLink of `flwr run` is running on {ADDRESS}.")
        for superlink in stopped:
            say(f"Stopped the SuperLink on {ADDRESS} (process {superlink.process_id}).")
            if superlink.may_have_run:
                # The process of a run lives on for some seconds after its last round.
                say("If a run was not finished, it stopped too.")
