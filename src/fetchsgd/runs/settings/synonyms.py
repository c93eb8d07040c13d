"""What other libraries call our settings, for the sentence about a name that we do not have."""

from __future__ import annotations

from fetchsgd.runs.settings.meanings import MEANINGS

ROUNDS = "rounds follow from epochs: an epoch has as many as it takes until each client has had one"
CLIENTS = "how many clients there are follows from the task, such as task.examples_per_client"

# Ours by theirs, lower case and without dashes and underscores.
SYNONYMS: dict[str, str] = {
    **dict.fromkeys(
        ("lr", "learningrate", "eta", "stepsize", "maxlr", "baselr", "lrscale", "serverlr",
         "clientlr", "locallr", "globallr", "peaklr", "innerlr"),
        "schedule.peak",
    ),
    **dict.fromkeys(("lrschedule", "scheduler", "lrscheduler"), "schedule.kind"),
    **dict.fromkeys(("warmup", "warmupepochs", "pivotepoch"), "schedule.pivot"),
    **dict.fromkeys(("rounds", "numrounds", "numserverrounds", "iterations", "numepochs",
                     "nepochs", "totalepochs", "commrounds"), "train.epochs"),
    **dict.fromkeys(
        ("numworkers", "participants", "clients", "numclients", "nclients", "totalclients",
         "cohort", "cohortsize", "clientsperepoch", "fraction", "fractionfit", "fractiontrain",
         "samplefraction", "minfitclients", "mintrainnodes"),
        "train.clients_per_round",
    ),
    **dict.fromkeys(("wd", "l2", "decay"), "train.weight_decay"),
    **dict.fromkeys(("randomseed", "manualseed", "rngseed"), "train.seed"),
    **dict.fromkeys(("gpu", "cuda", "accelerator"), "train.device"),
    **dict.fromkeys(("precision", "amp", "fp16", "bf16", "half"), "train.dtype"),
    **dict.fromkeys(("evalfreq", "evalinterval", "evaluateevery", "testevery"), "train.eval_every"),
    **dict.fromkeys(
        ("saveevery", "savefreq", "saveinterval", "checkpointfreq"), "train.checkpoint_every"
    ),
    **dict.fromkeys(
        ("rho", "beta", "servermomentum", "virtualmomentum", "globalmomentum"), "method.momentum"
    ),
    **dict.fromkeys(("topk", "topksize", "sparsity", "nnz"), "method.k"),
    **dict.fromkeys(("numcols", "columns", "ncols", "c", "sketchsize"), "method.cols"),
    **dict.fromkeys(("numrows", "nrows", "r", "depth"), "method.rows"),
    **dict.fromkeys(("algorithm", "strategy"), "method.name"),
    **dict.fromkeys(("localepochs", "numlocalepochs", "e"), "local.epochs"),
    **dict.fromkeys(("localsteps", "numlocaliters", "innersteps", "syncevery"), "local.steps"),
    **dict.fromkeys(("inneroptimizer", "localoptimizer", "opt"), "local.optimizer"),
    **dict.fromkeys(("outerlr", "outerlearningrate"), "local.outer_rate"),
    "betas": "local.beta1",
    **dict.fromkeys(("outermomentum",), "method.momentum"),
    **dict.fromkeys(("localbatchsize", "batch", "bs", "b"), "local.batch_size"),
    **dict.fromkeys(
        ("clipnorm", "maxgradnorm", "gradclip", "clipping", "gradientclip"), "local.clip"
    ),
    **dict.fromkeys(("numbits", "nbits", "quantization", "quantizationbits"), "upload.bits"),
    **dict.fromkeys(("modulusbits", "ringbits", "modulus"), "upload.sum_bits"),
    **dict.fromkeys(("secagg", "secaggplus", "secureaggregation"), "upload.secure"),
    **dict.fromkeys(("dropoutrate", "dropoutfraction"), "upload.dropping"),
    **dict.fromkeys(("noisemultiplier", "sigma", "dpsigma"), "privacy.noise"),
    **dict.fromkeys(("targetepsilon", "dpepsilon"), "privacy.epsilon"),
    **dict.fromkeys(("l2normclip", "clippingnorm", "dpclip"), "privacy.clip"),
    **dict.fromkeys(("quantizer", "compressor", "compression"), "upload.quantiser"),
    **dict.fromkeys(("dataset", "data", "model"), "task.name"),
    **dict.fromkeys(("datadir", "dataroot", "root", "datasetdir", "datapath"), "task.folder"),
    **dict.fromkeys(("iid", "partition", "partitioner"), "task.split"),
    **dict.fromkeys(("dirichletalpha", "concentration"), "task.alpha"),
}  # fmt: skip

MORE = {"train.epochs": ROUNDS, "train.clients_per_round": CLIENTS}
NEED_MORE = {
    **dict.fromkeys(("numepochs", "nepochs", "totalepochs"), False),
    **dict.fromkeys(("participants", "cohort", "cohortsize"), False),
}


def ours(name: str) -> str | None:
    """The full name of the setting that others call so; None if we do not know."""
    return SYNONYMS.get(_plain(name))


def in_our_words(name: str) -> str:
    """The end of a sentence about a name that we do not have; empty if we do not know it."""
    found = ours(name)
    if found is None:
        return ""
    more = MORE.get(found, "") if NEED_MORE.get(_plain(name), True) else ""
    return f": here it is {found}, {MEANINGS[found].text}" + (f" ({more})" if more else "")


def _plain(name: str) -> str:
    return name.rpartition(".")[2].replace("-", "").replace("_", "").lower()
