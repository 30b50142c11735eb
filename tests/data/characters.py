"""A character tokenizer with a chat template; where its BOS and EOS come from can be chosen."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<s>", "</s>", "<sys>", "<u>", "<a>"]
TEMPLATE = (
    "{% if bos_in_template %}<s>{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ {'system': '<sys>', 'user': '<u>', 'assistant': '<a>'}[m.role] }}{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def make_tokenizer(*, bos_in_template=True, adds_bos=True, adds_eos=False, chat=True):
    characters = [chr(i) for i in range(32, 127)] + ["\n"]
    vocab = {token: i for i, token in enumerate(SPECIAL + characters)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    if adds_bos or adds_eos:
        single = ("<s> " if adds_bos else "") + "$A" + (" </s>" if adds_eos else "")
        special = [(token, vocab[token]) for token in ("<s>", "</s>")]
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<sys>", "<u>", "<a>"],
    )
    if chat:
        tokenizer.chat_template = TEMPLATE.replace("bos_in_template", str(bos_in_template).lower())
    return tokenizer
