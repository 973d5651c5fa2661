"""The serving engine: requests come and go while others are decoded, each with sampling parameters of its own.

Import names from the modules; ``requests`` is light, ``engine`` imports Paddle:

* ``engine.requests``: :class:`GenerationRequest`; events :class:`Tokens`, :class:`PromptScored`, :class:`Finished` and
  :class:`Failed`; :class:`Ticket`, :class:`EngineStats`; errors :class:`QueueFull` and :class:`EngineStopped`.
* ``engine.engine``: :class:`Engine`.

How it is used::

    engine = Engine(bundle, tokenizer, rows=8, context=4096)
    engine.start()                                  # returns when the engine's thread is ready, or raises
    ticket = engine.submit(GenerationRequest(ids=(1, 2, 3), sampling=Sampling(), max_new_tokens=20), listener)
    engine.cancel(ticket)                           # from any thread; Finished("abort") follows
    engine.stats()
    engine.stop(drain=True, timeout=30)

A listener is called in the engine's thread, so it must be quick and must not wait; that of an asyncio server hands events
over with ``loop.call_soon_threadsafe``. It may be called before ``submit`` has returned. A listener that raises ends its
own request. Events of a request: ``PromptScored`` if it was asked for, any number of ``Tokens``, then exactly one of
``Finished`` and ``Failed``.

* The token that ends a completion (one of ``stop_ids``) is the last one of its ``Tokens``. Stop strings are the server's
  business: it cancels.
* Log-probabilities are float32, of softmax over the model's logits as they are, before temperature, penalties, biases and
  masks. They are computed in float64 and rounded once, so equal logits have equal log-probabilities.
* ``GenerationRequest.adapter`` names an adapter that is on the model (``load_adapter``); the empty name is the base alone,
  None what ``Engine(adapter=...)`` says, by default the base. Rows with different adapters are decoded side by side.
* Prompts with images: ``Responder.encode`` gives ids and ``media``.
* ``EngineStats.invariant`` tells whether completions and log-probabilities are the same, bit by bit, whatever else is decoded:
  always where a kernel computes whole passes, elsewhere with ``Engine(invariant=True)``.
* ``prompt_logprobs`` reads the prompt from ``scored_from`` on, so nothing behind that comes from the prefix cache.
* An error that a request causes is its ``Failed`` (``NumericsError`` for logits that are not finite, whatever a constraint
  raised, ``UsageError`` where no token is allowed). An error of the engine itself is the ``Failed`` of all, and
  ``EngineStats.error``; ``submit`` raises ``EngineStopped`` from then on.
"""
